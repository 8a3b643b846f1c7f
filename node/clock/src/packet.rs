//! SNTP messages, RFC 4330, section 4. No I/O.

use crate::Nanoseconds;

pub(crate) const LENGTH: usize = 48;

/// Leap indicator 0, version 4, mode 3 (client).
const CLIENT: u8 = 4 << 3 | 3;

const SERVER: u8 = 4;

/// Seconds from 1900 to 1970.
const UNIX_EPOCH: i64 = 2_208_988_800;

/// Seconds of an NTP era, 2^32.
const ERA: i64 = 1 << 32;

const NANOSECONDS: i64 = 1_000_000_000;

/// Maximum distance of a server from its time source. The machine's own clock may be better than a more distant server.
const ROOT_DISTANCE: Nanoseconds = 5 * NANOSECONDS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leap {
    /// The last minute has 60 seconds.
    None,
    /// The last minute has 61 seconds.
    Insert,
    /// The last minute has 59 seconds.
    Delete,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("the answer has {0} bytes instead of {LENGTH}")]
    Short(usize),
    /// The mode is not that of a server, or the version is not 1 to 4.
    #[error("the packet is not an answer of an SNTP server")]
    NotServer,
    #[error("the answer belongs to another request")]
    OtherRequest,
    /// Kiss of death: the server rejects the request or its rate.
    #[error("the server rejected the request with code {0:?}")]
    KissOfDeath(String),
    #[error("the server is not synchronized")]
    Unsynchronized,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Arrival of the request, since 1970.
    pub(crate) received: Nanoseconds,
    /// Departure of the answer, since 1970.
    pub(crate) sent: Nanoseconds,
    pub(crate) leap: Leap,
}

/// A request. The server returns `cookie` in place of the client's time. Therefore the request does not reveal the
/// clock, and an attacker who cannot see the request cannot answer it.
pub(crate) fn question(cookie: u64) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[0] = CLIENT;
    bytes[40..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

impl Answer {
    pub(crate) fn parse(bytes: &[u8], cookie: u64) -> Result<Self, AnswerError> {
        let Some(bytes) = bytes.first_chunk::<LENGTH>() else { return Err(AnswerError::Short(bytes.len())) };
        let (leap, version, mode) = (bytes[0] >> 6, bytes[0] >> 3 & 7, bytes[0] & 7);
        if mode != SERVER || !(1..=4).contains(&version) {
            return Err(AnswerError::NotServer);
        }
        if word(bytes, 24) != cookie {
            return Err(AnswerError::OtherRequest);
        }
        let leap = match leap {
            0 => Leap::None,
            1 => Leap::Insert,
            2 => Leap::Delete,
            _ => return Err(AnswerError::Unsynchronized),
        };
        match bytes[1] {
            0 => return Err(AnswerError::KissOfDeath(String::from_utf8_lossy(&bytes[12..16]).into_owned())),
            1..=15 => {}
            _ => return Err(AnswerError::Unsynchronized),
        }
        // Root delay and dispersion: 16 bits of seconds and 16 bits of fractions.
        let [delay, dispersion] = [4, 8].map(|at| ((word(bytes, at) >> 32) as i64 * NANOSECONDS) >> 16);
        let (received, sent) = (word(bytes, 32), word(bytes, 40));
        if delay / 2 + dispersion > ROOT_DISTANCE || received == 0 || sent == 0 {
            return Err(AnswerError::Unsynchronized);
        }
        let (received, sent) = (since_1970(received), since_1970(sent));
        // Linux does not support times before 1970.
        if received <= 0 || sent <= 0 {
            return Err(AnswerError::Unsynchronized);
        }
        Ok(Self { received, sent, leap })
    }
}

fn word(bytes: &[u8; LENGTH], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Converts an NTP time, 32 bits of seconds and 32 bits of fractions, from 1968 to 2104 (RFC 4330, section 3).
fn since_1970(time: u64) -> Nanoseconds {
    let (seconds, fraction) = ((time >> 32) as i64, time & u64::from(u32::MAX));
    let era = if seconds < ERA / 2 { ERA } else { 0 };
    let below = (fraction * NANOSECONDS as u64) >> 32;
    (seconds + era - UNIX_EPOCH) * NANOSECONDS + below as i64
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Converts to NTP time, rounded up to its unit of a quarter of a nanosecond.
    pub(crate) fn ntp(time: Nanoseconds) -> u64 {
        let (seconds, below) = (time.div_euclid(NANOSECONDS), time.rem_euclid(NANOSECONDS) as u64);
        let fraction = ((below << 32) as f64 / NANOSECONDS as f64).ceil() as u64;
        ((seconds + UNIX_EPOCH) as u64) << 32 | fraction
    }

    pub(crate) fn answer(cookie: u64, received: Nanoseconds, sent: Nanoseconds) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0] = 4 << 3 | SERVER;
        bytes[1] = 2;
        bytes[24..32].copy_from_slice(&cookie.to_be_bytes());
        bytes[32..40].copy_from_slice(&ntp(received).to_be_bytes());
        bytes[40..].copy_from_slice(&ntp(sent).to_be_bytes());
        bytes
    }

    fn with(change: impl FnOnce(&mut [u8; LENGTH])) -> Result<Answer, AnswerError> {
        let mut bytes = answer(7, 1, 2);
        change(&mut bytes);
        Answer::parse(&bytes, 7)
    }

    #[test]
    fn ntp_eras_are_continuous_in_2036() {
        assert_eq!(since_1970(0), (ERA - UNIX_EPOCH) * NANOSECONDS);
        assert_eq!(since_1970(u64::MAX) / NANOSECONDS, ERA - UNIX_EPOCH - 1);
        assert_eq!(since_1970((UNIX_EPOCH as u64) << 32 | 1 << 31), NANOSECONDS / 2);
    }

    #[test]
    fn a_request_contains_only_mode_and_cookie() {
        let question = question(0x0102_0304_0506_0708);
        assert_eq!((question[0], &question[40..]), (0x23, &[1, 2, 3, 4, 5, 6, 7, 8][..]));
        assert!(question[1..40].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn unusable_answers_are_rejected() {
        assert_eq!(with(|_| {}).unwrap().leap, Leap::None);
        assert_eq!(with(|bytes| bytes[0] |= 1 << 6).unwrap().leap, Leap::Insert);
        assert_eq!(with(|bytes| bytes[0] |= 2 << 6).unwrap().leap, Leap::Delete);
        assert_eq!(with(|bytes| bytes[0] |= 3 << 6), Err(AnswerError::Unsynchronized));
        assert_eq!(with(|bytes| bytes[0] = CLIENT), Err(AnswerError::NotServer));
        assert_eq!(with(|bytes| bytes[0] = 5 << 3 | SERVER), Err(AnswerError::NotServer));
        assert_eq!(with(|bytes| bytes[31] ^= 1), Err(AnswerError::OtherRequest));
        assert_eq!(with(|bytes| bytes[1] = 16), Err(AnswerError::Unsynchronized));
        assert_eq!(with(|bytes| bytes[40..].fill(0)), Err(AnswerError::Unsynchronized));
        assert_eq!(with(|bytes| bytes[5] = 11), Err(AnswerError::Unsynchronized));
        // Times from 1968 to 1970.
        for at in [32, 40] {
            for seconds in [1_u32 << 31, UNIX_EPOCH as u32 - 1] {
                let early = with(|bytes| bytes[at..at + 4].copy_from_slice(&seconds.to_be_bytes()));
                assert_eq!(early, Err(AnswerError::Unsynchronized), "{seconds} at {at}");
            }
        }
        let refused = with(|bytes| {
            bytes[1] = 0;
            bytes[12..16].copy_from_slice(b"RATE");
        });
        assert_eq!(refused, Err(AnswerError::KissOfDeath("RATE".to_owned())));
        assert_eq!(Answer::parse(&[0; LENGTH - 1], 7), Err(AnswerError::Short(LENGTH - 1)));
    }

    #[test]
    fn a_kiss_of_death_for_another_request_is_ignored() {
        let mut bytes = answer(8, 1, 2);
        bytes[1] = 0;
        assert_eq!(Answer::parse(&bytes, 7), Err(AnswerError::OtherRequest));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100), cookie in any::<u64>()) {
            let _ = Answer::parse(&bytes, cookie);
        }

        #[test]
        fn parsing_an_answer_with_the_cookie_never_panics(mut bytes in prop::array::uniform32(any::<u8>()), more in prop::array::uniform16(any::<u8>())) {
            bytes[0] = 4 << 3 | SERVER;
            let cookie = u64::from_be_bytes(bytes[24..].try_into().unwrap());
            let _ = Answer::parse(&[&bytes[..], &more].concat(), cookie);
        }

        #[test]
        fn times_are_exact_to_the_nanosecond(received in 1..2 * ERA * NANOSECONDS / 3, took in 0..NANOSECONDS) {
            let found = Answer::parse(&answer(7, received, received + took), 7).unwrap();
            prop_assert!((found.received - received).abs() <= 1, "{} {received}", found.received);
            prop_assert!((found.sent - received - took).abs() <= 1);
        }
    }
}
