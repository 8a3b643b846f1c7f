//! The 48 bytes of SNTP, RFC 4330, section 4. Pure.

use crate::Nanoseconds;

/// Bytes of a message; more is for authentication, which nobody does here.
pub(crate) const LENGTH: usize = 48;

/// Leap indicator 0, version 4, mode 3 (client).
const CLIENT: u8 = 4 << 3 | 3;

const SERVER: u8 = 4;

/// From 1900 to 1970, in seconds.
const UNIX_EPOCH: i64 = 2_208_988_800;

/// Of one turn of the 32 bits of seconds.
const ERA: i64 = 1 << 32;

const NANOSECONDS: i64 = 1_000_000_000;

/// A server whose time may be off by more knows it no better than the machine.
const ROOT_DISTANCE: Nanoseconds = 5 * NANOSECONDS;

/// A second that the last minute of the day has more or less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leap {
    /// It has 60.
    None,
    /// It has 61.
    Insert,
    /// It has 59.
    Delete,
}

/// Why an answer is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// Too few bytes.
    #[error("it has {0} bytes, and not {LENGTH}")]
    Short(usize),
    /// Another mode than a server's, or a version from before 1 or after 4.
    #[error("it is no answer of an SNTP server")]
    NoServer,
    /// It answers another question.
    #[error("it is the answer to another question")]
    Stranger,
    /// A kiss of death: the server does not want to be asked (so often).
    #[error("the server refuses with the code {0:?}")]
    Refused(String),
    /// The server says so.
    #[error("the server does not know the time")]
    Unsynchronized,
}

/// What a server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// When the question came, since 1970.
    pub(crate) received: Nanoseconds,
    /// When the answer went.
    pub(crate) sent: Nanoseconds,
    pub(crate) leap: Leap,
}

/// A question. The server sends `cookie` back, in the place of the time when it was asked: that is nobody's business, and
/// who cannot see the question cannot answer it.
pub(crate) fn question(cookie: u64) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[0] = CLIENT;
    bytes[40..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

impl Answer {
    /// Reads the answer to the question with this cookie.
    pub(crate) fn parse(bytes: &[u8], cookie: u64) -> Result<Self, Malformed> {
        let Some(bytes) = bytes.first_chunk::<LENGTH>() else { return Err(Malformed::Short(bytes.len())) };
        let (leap, version, mode) = (bytes[0] >> 6, bytes[0] >> 3 & 7, bytes[0] & 7);
        if mode != SERVER || !(1..=4).contains(&version) {
            return Err(Malformed::NoServer);
        }
        if word(bytes, 24) != cookie {
            return Err(Malformed::Stranger);
        }
        let leap = match leap {
            0 => Leap::None,
            1 => Leap::Insert,
            2 => Leap::Delete,
            _ => return Err(Malformed::Unsynchronized),
        };
        match bytes[1] {
            0 => return Err(Malformed::Refused(String::from_utf8_lossy(&bytes[12..16]).into_owned())),
            1..=15 => {}
            _ => return Err(Malformed::Unsynchronized),
        }
        // 16 bits of seconds and 16 below; how far the server itself is from who knows the time.
        let [delay, dispersion] = [4, 8].map(|at| ((word(bytes, at) >> 32) as i64 * NANOSECONDS) >> 16);
        let (received, sent) = (word(bytes, 32), word(bytes, 40));
        if delay / 2 + dispersion > ROOT_DISTANCE || received == 0 || sent == 0 {
            return Err(Malformed::Unsynchronized);
        }
        let (received, sent) = (since_1970(received), since_1970(sent));
        // Linux has no time before 1970.
        if received <= 0 || sent <= 0 {
            return Err(Malformed::Unsynchronized);
        }
        Ok(Self { received, sent, leap })
    }
}

/// The eight bytes from `at` on.
fn word(bytes: &[u8; LENGTH], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// A time of NTP, 32 bits of seconds and 32 below, from 1968 to 2104 (RFC 4330, section 3).
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

    /// A time of NTP, rounded up to its unit of a quarter of a nanosecond.
    pub(crate) fn ntp(time: Nanoseconds) -> u64 {
        let (seconds, below) = (time.div_euclid(NANOSECONDS), time.rem_euclid(NANOSECONDS) as u64);
        let fraction = ((below << 32) as f64 / NANOSECONDS as f64).ceil() as u64;
        ((seconds + UNIX_EPOCH) as u64) << 32 | fraction
    }

    /// What a good server answers.
    pub(crate) fn answer(cookie: u64, received: Nanoseconds, sent: Nanoseconds) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0] = 4 << 3 | SERVER;
        bytes[1] = 2;
        bytes[24..32].copy_from_slice(&cookie.to_be_bytes());
        bytes[32..40].copy_from_slice(&ntp(received).to_be_bytes());
        bytes[40..].copy_from_slice(&ntp(sent).to_be_bytes());
        bytes
    }

    fn with(change: impl FnOnce(&mut [u8; LENGTH])) -> Result<Answer, Malformed> {
        let mut bytes = answer(7, 1, 2);
        change(&mut bytes);
        Answer::parse(&bytes, 7)
    }

    #[test]
    fn the_eras_meet_in_2036() {
        assert_eq!(since_1970(0), (ERA - UNIX_EPOCH) * NANOSECONDS);
        assert_eq!(since_1970(u64::MAX) / NANOSECONDS, ERA - UNIX_EPOCH - 1);
        assert_eq!(since_1970((UNIX_EPOCH as u64) << 32 | 1 << 31), NANOSECONDS / 2);
    }

    #[test]
    fn a_question_is_a_clients_and_tells_nothing_but_the_cookie() {
        let question = question(0x0102_0304_0506_0708);
        assert_eq!((question[0], &question[40..]), (0x23, &[1, 2, 3, 4, 5, 6, 7, 8][..]));
        assert!(question[1..40].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn an_answer_that_nobody_should_believe_is_refused() {
        assert_eq!(with(|_| {}).unwrap().leap, Leap::None);
        assert_eq!(with(|bytes| bytes[0] |= 1 << 6).unwrap().leap, Leap::Insert);
        assert_eq!(with(|bytes| bytes[0] |= 2 << 6).unwrap().leap, Leap::Delete);
        assert_eq!(with(|bytes| bytes[0] |= 3 << 6), Err(Malformed::Unsynchronized));
        assert_eq!(with(|bytes| bytes[0] = CLIENT), Err(Malformed::NoServer));
        assert_eq!(with(|bytes| bytes[0] = 5 << 3 | SERVER), Err(Malformed::NoServer));
        assert_eq!(with(|bytes| bytes[31] ^= 1), Err(Malformed::Stranger));
        assert_eq!(with(|bytes| bytes[1] = 16), Err(Malformed::Unsynchronized));
        assert_eq!(with(|bytes| bytes[40..].fill(0)), Err(Malformed::Unsynchronized));
        assert_eq!(with(|bytes| bytes[5] = 11), Err(Malformed::Unsynchronized));
        // From 1968 to 1970.
        for at in [32, 40] {
            for seconds in [1_u32 << 31, UNIX_EPOCH as u32 - 1] {
                let early = with(|bytes| bytes[at..at + 4].copy_from_slice(&seconds.to_be_bytes()));
                assert_eq!(early, Err(Malformed::Unsynchronized), "{seconds} at {at}");
            }
        }
        let refused = with(|bytes| {
            bytes[1] = 0;
            bytes[12..16].copy_from_slice(b"RATE");
        });
        assert_eq!(refused, Err(Malformed::Refused("RATE".to_owned())));
        assert_eq!(Answer::parse(&[0; LENGTH - 1], 7), Err(Malformed::Short(LENGTH - 1)));
    }

    #[test]
    fn a_refusal_that_answers_another_question_is_not_heard() {
        let mut bytes = answer(8, 1, 2);
        bytes[1] = 0;
        assert_eq!(Answer::parse(&bytes, 7), Err(Malformed::Stranger));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), cookie in any::<u64>()) {
            let _ = Answer::parse(&bytes, cookie);
        }

        #[test]
        fn no_answer_to_the_question_makes_it_panic(mut bytes in prop::array::uniform32(any::<u8>()), more in prop::array::uniform16(any::<u8>())) {
            bytes[0] = 4 << 3 | SERVER;
            let cookie = u64::from_be_bytes(bytes[24..].try_into().unwrap());
            let _ = Answer::parse(&[&bytes[..], &more].concat(), cookie);
        }

        #[test]
        fn times_are_read_to_the_nanosecond(received in 1..2 * ERA * NANOSECONDS / 3, took in 0..NANOSECONDS) {
            let found = Answer::parse(&answer(7, received, received + took), 7).unwrap();
            prop_assert!((found.received - received).abs() <= 1, "{} {received}", found.received);
            prop_assert!((found.sent - received - took).abs() <= 1);
        }
    }
}
