//! The DHCP client, RFC 2131 section 4.4, as a state machine: it is told of the time and of answers, and says what to
//! send and what has changed. Pure: time is what has passed since the client was made.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::lease::{Lease, Times};
use crate::message::{Answer, Ask, Hardware, Reply, Request};

/// How long the first answer may take; each time twice as long, [`LONGEST`] at most.
const FIRST: Duration = Duration::from_secs(4);
const LONGEST: Duration = Duration::from_secs(64);
/// Times that we ask for what was offered, before we look for another offer.
const TAKES: u32 = 4;
/// Between two tries to keep a lease.
const KEEP: Duration = Duration::from_secs(30);

/// A message, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    /// The message.
    pub request: Request,
    /// The server, or everybody (255.255.255.255).
    pub to: Ipv4Addr,
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The address can be used, from now on or still.
    Bound(Lease),
    /// The lease has ended, and no server has answered. Asking goes on.
    Expired(Lease),
    /// A server says that the address is not ours any more. Asking goes on.
    Lost(Lease),
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing is known but perhaps the last address.
    Selecting {
        wished: Option<Ipv4Addr>,
    },
    /// An offer is taken, its server has not agreed yet.
    Taking {
        offer: Lease,
    },
    Bound {
        lease: Lease,
        since: Duration,
    },
}

/// The client of one device.
#[derive(Clone, Debug)]
pub struct Client {
    hardware: Hardware,
    state: State,
    /// Of what is asked now.
    transaction: u32,
    /// Messages that had no answer that counts.
    attempts: u32,
    /// When asking began.
    began: Duration,
    /// When something is to be done.
    deadline: Option<Duration>,
    /// Changed with each number drawn.
    seed: u64,
}

impl Client {
    /// A client that has something to send at once. Different seeds keep clients that start at one time from asking
    /// at one time for ever.
    pub fn new(hardware: Hardware, seed: u64) -> Self {
        let mut client = Self {
            hardware,
            state: State::Selecting { wished: None },
            transaction: 0,
            attempts: 0,
            began: Duration::ZERO,
            deadline: Some(Duration::ZERO),
            seed,
        };
        client.transaction = client.draw();
        client
    }

    /// When [`Client::wake`] wants to be called; never if absent.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Messages without an answer since the last one that counted.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The deadline has come. Before it, nothing happens.
    pub fn wake(&mut self, now: Duration) -> (Option<Send>, Option<Change>) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return (None, None);
        }
        match self.state.clone() {
            State::Selecting { wished } => (Some(self.discover(now, wished)), None),
            State::Taking { .. } if self.attempts >= TAKES => (Some(self.select(now, None)), None),
            State::Taking { offer } => (Some(self.take(now, &offer)), None),
            State::Bound { lease, since } => self.keep(now, lease, since),
        }
    }

    /// A message came. What is not for us, or not now, changes nothing.
    pub fn receive(&mut self, now: Duration, reply: &Reply) -> (Option<Send>, Option<Change>) {
        if reply.transaction != self.transaction || reply.hardware != self.hardware {
            return (None, None);
        }
        match (self.state.clone(), &reply.answer) {
            (State::Selecting { .. }, Answer::Offer(offer)) => {
                self.state = State::Taking { offer: offer.clone() };
                self.attempts = 0;
                (Some(self.take(now, offer)), None)
            }
            (State::Taking { offer }, Answer::Acknowledge(lease)) if offer.server == reply.server => {
                (None, Some(self.bind(now, lease.clone())))
            }
            // It gave the address to somebody else meanwhile. Not at once, or we would be busy with it.
            (State::Taking { offer }, Answer::Refuse) if offer.server == reply.server => {
                self.state = State::Selecting { wished: None };
                self.attempts = self.attempts.max(1);
                self.deadline = Some(now.saturating_add(self.pause()));
                (None, None)
            }
            // Before its renewal nothing was asked.
            (State::Bound { .. }, Answer::Acknowledge(lease)) if self.attempts > 0 => {
                (None, Some(self.bind(now, lease.clone())))
            }
            (State::Bound { lease, .. }, Answer::Refuse) if self.attempts > 0 => {
                (Some(self.select(now, None)), Some(Change::Lost(lease)))
            }
            _ => (None, None),
        }
    }

    /// From the beginning.
    fn select(&mut self, now: Duration, wished: Option<Ipv4Addr>) -> Send {
        self.attempts = 0;
        self.began = now;
        self.transaction = self.draw();
        self.state = State::Selecting { wished };
        self.discover(now, wished)
    }

    fn discover(&mut self, now: Duration, wished: Option<Ipv4Addr>) -> Send {
        let send = self.send(now, Ask::Discover { wished }, Ipv4Addr::BROADCAST);
        self.deadline = Some(now.saturating_add(self.pause()));
        self.attempts = self.attempts.saturating_add(1);
        send
    }

    fn take(&mut self, now: Duration, offer: &Lease) -> Send {
        let ask = Ask::Take { address: offer.interface.address, server: offer.server };
        let send = self.send(now, ask, Ipv4Addr::BROADCAST);
        self.deadline = Some(now.saturating_add(self.pause()));
        self.attempts = self.attempts.saturating_add(1);
        send
    }

    fn bind(&mut self, now: Duration, lease: Lease) -> Change {
        self.attempts = 0;
        self.deadline = lease.times().map(|times| now.saturating_add(times.renewal));
        self.state = State::Bound { lease: lease.clone(), since: now };
        Change::Bound(lease)
    }

    /// The server first, then any, then from the beginning.
    fn keep(&mut self, now: Duration, lease: Lease, since: Duration) -> (Option<Send>, Option<Change>) {
        let Some(Times { rebinding, end, .. }) = lease.times() else {
            self.deadline = None;
            return (None, None);
        };
        let (rebinding, end) = (since.saturating_add(rebinding), since.saturating_add(end));
        let address = lease.interface.address;
        if now >= end {
            return (Some(self.select(now, Some(address))), Some(Change::Expired(lease)));
        }
        if self.attempts == 0 {
            self.transaction = self.draw();
            self.began = now;
        }
        let (to, until) = if now < rebinding { (lease.server, rebinding) } else { (Ipv4Addr::BROADCAST, end) };
        let send = self.send(now, Ask::Keep { address }, to);
        self.attempts = self.attempts.saturating_add(1);
        // Half of what is left, RFC 2131 section 4.4.5.
        let pause = (until.saturating_sub(now) / 2).max(KEEP);
        self.deadline = Some(now.saturating_add(pause).min(until.max(now.saturating_add(Duration::from_secs(1)))));
        (Some(send), None)
    }

    fn send(&self, now: Duration, ask: Ask, to: Ipv4Addr) -> Send {
        let elapsed = now.saturating_sub(self.began);
        let request = Request { ask, transaction: self.transaction, elapsed, hardware: self.hardware };
        Send { request, to }
    }

    /// Up to a second more or less, RFC 2131 section 4.1.
    fn pause(&mut self) -> Duration {
        let longer = FIRST.saturating_mul(1_u32.checked_shl(self.attempts).unwrap_or(u32::MAX)).min(LONGEST);
        longer - Duration::from_secs(1) + Duration::from_millis(u64::from(self.draw() % 2000))
    }

    /// SplitMix64: spread, not secret.
    fn draw(&mut self) -> u32 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const HARDWARE: Hardware = [2, 0, 0, 0, 0, 1];
    const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const HOUR: Duration = Duration::from_secs(3600);

    fn lease(time: Duration) -> Lease {
        Lease {
            interface: "192.0.2.10/24".parse().unwrap(),
            server: SERVER,
            gateway: Some(SERVER),
            name_servers: vec![],
            time_servers: vec![],
            mtu: None,
            time: Some(time),
            renewal: None,
            rebinding: None,
        }
    }

    fn answered(send: Send, answer: Answer) -> Reply {
        let Request { transaction, hardware, .. } = send.request;
        Reply { answer, transaction, hardware, server: SERVER }
    }

    /// What a server of this lease says.
    fn serve(send: Send, lease: &Lease) -> Reply {
        let answer = match send.request.ask {
            Ask::Discover { .. } => Answer::Offer(lease.clone()),
            Ask::Take { .. } | Ask::Keep { .. } => Answer::Acknowledge(lease.clone()),
        };
        answered(send, answer)
    }

    /// A client with a lease that it got at the beginning.
    fn bound(time: Duration) -> Client {
        let mut client = Client::new(HARDWARE, 1);
        let discover = client.wake(Duration::ZERO).0.unwrap();
        let take = client.receive(Duration::ZERO, &serve(discover, &lease(time))).0.unwrap();
        assert_eq!(take.request.ask, Ask::Take { address: lease(time).interface.address, server: SERVER });
        assert_eq!(
            client.receive(Duration::ZERO, &serve(take, &lease(time))),
            (None, Some(Change::Bound(lease(time))))
        );
        client
    }

    #[test]
    fn without_an_answer_it_asks_for_ever_and_ever_less_often() {
        let mut client = Client::new(HARDWARE, 1);
        let mut now = Duration::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..40 {
            let (send, change) = client.wake(now);
            assert_eq!(send.unwrap().request.ask, Ask::Discover { wished: None });
            assert_eq!(change, None);
            let next = client.deadline().unwrap();
            pauses.push((next - now).as_secs());
            now = next;
        }
        assert!((3..=5).contains(&pauses[0]) && (7..=9).contains(&pauses[1]), "{pauses:?}");
        assert!(pauses[4..].iter().all(|pause| (63..=65).contains(pause)), "{pauses:?}");
    }

    #[test]
    fn a_lease_is_renewed_at_its_half_with_its_server() {
        let mut client = bound(HOUR);
        assert_eq!(client.deadline(), Some(HOUR / 2));
        assert_eq!(client.wake(HOUR / 2 - Duration::from_secs(1)), (None, None));
        let keep = client.wake(HOUR / 2).0.unwrap();
        assert_eq!((keep.request.ask, keep.to), (Ask::Keep { address: lease(HOUR).interface.address }, SERVER));
        let (send, change) = client.receive(HOUR / 2, &serve(keep, &lease(HOUR)));
        assert_eq!((send, change), (None, Some(Change::Bound(lease(HOUR)))));
        assert_eq!(client.deadline(), Some(HOUR));
    }

    #[test]
    fn a_lease_that_nobody_renews_ends_and_is_asked_for_again() {
        let mut client = bound(HOUR);
        let (mut asked, mut rebinding) = (0, 0);
        let expired = loop {
            let now = client.deadline().unwrap();
            let (send, change) = client.wake(now);
            let send = send.unwrap();
            if let Some(change) = change {
                assert_eq!(now, HOUR);
                break (send, change);
            }
            asked += 1;
            rebinding += u32::from(send.to == Ipv4Addr::BROADCAST);
            assert_eq!(send.to == SERVER, now < HOUR / 8 * 7);
        };
        let wished = Some(lease(HOUR).interface.address);
        assert_eq!(expired.0.request.ask, Ask::Discover { wished });
        assert_eq!(expired.1, Change::Expired(lease(HOUR)));
        assert!((8..30).contains(&asked) && rebinding > 2, "{asked} {rebinding}");
    }

    #[test]
    fn an_address_that_is_refused_is_given_up() {
        let mut client = bound(HOUR);
        let keep = client.wake(HOUR / 2).0.unwrap();
        let (send, change) = client.receive(HOUR / 2, &answered(keep, Answer::Refuse));
        assert_eq!(send.unwrap().request.ask, Ask::Discover { wished: None });
        assert_eq!(change, Some(Change::Lost(lease(HOUR))));
    }

    #[test]
    fn what_was_not_asked_for_changes_nothing() {
        let mut client = bound(HOUR);
        let sent = Send {
            request: Request {
                ask: Ask::Discover { wished: None },
                transaction: client.transaction,
                elapsed: Duration::ZERO,
                hardware: HARDWARE,
            },
            to: SERVER,
        };
        for answer in [Answer::Refuse, Answer::Offer(lease(HOUR)), Answer::Acknowledge(lease(HOUR))] {
            assert_eq!(client.receive(HOUR / 4, &answered(sent, answer)), (None, None));
        }
        let mut client = Client::new(HARDWARE, 1);
        let discover = client.wake(Duration::ZERO).0.unwrap();
        let mut other = serve(discover, &lease(HOUR));
        other.hardware = [9; 6];
        assert_eq!(client.receive(Duration::ZERO, &other), (None, None));
        other = serve(discover, &lease(HOUR));
        other.transaction ^= 1;
        assert_eq!(client.receive(Duration::ZERO, &other), (None, None));
    }

    #[test]
    fn a_lease_for_ever_is_never_renewed() {
        let mut client = Client::new(HARDWARE, 1);
        let endless = Lease { time: None, ..lease(HOUR) };
        let discover = client.wake(Duration::ZERO).0.unwrap();
        let take = client.receive(Duration::ZERO, &serve(discover, &endless)).0.unwrap();
        client.receive(Duration::ZERO, &serve(take, &endless));
        assert_eq!(client.deadline(), None);
        assert_eq!(client.wake(Duration::MAX), (None, None));
    }

    /// What may happen to a client: time passes, or a message comes.
    #[derive(Clone, Debug)]
    enum Happening {
        Passes(Duration),
        Deadline,
        Comes { answer: Answer, ours: bool, server: Ipv4Addr },
    }

    fn happenings() -> impl Strategy<Value = Vec<Happening>> {
        let answer = prop_oneof![
            Just(Answer::Refuse),
            (0_u64..100_000).prop_map(|seconds| Answer::Offer(lease(Duration::from_secs(seconds)))),
            (0_u64..100_000).prop_map(|seconds| Answer::Acknowledge(lease(Duration::from_secs(seconds)))),
        ];
        let server = prop_oneof![3 => Just(SERVER), 1 => Just(Ipv4Addr::new(192, 0, 2, 2))];
        let happening = prop_oneof![
            (0_u64..100_000).prop_map(|seconds| Happening::Passes(Duration::from_secs(seconds))),
            Just(Happening::Deadline),
            (answer, any::<bool>(), server).prop_map(|(answer, ours, server)| Happening::Comes {
                answer,
                ours,
                server
            }),
        ];
        vec(happening, 0..60)
    }

    /// Applies them; returns the time.
    fn live(client: &mut Client, happenings: Vec<Happening>) -> Duration {
        let mut now = Duration::ZERO;
        for happening in happenings {
            match happening {
                Happening::Passes(time) => now += time,
                Happening::Deadline => now = now.max(client.deadline().unwrap_or(now)),
                Happening::Comes { answer, ours, server } => {
                    let transaction = client.transaction ^ u32::from(!ours);
                    let reply = Reply { answer, transaction, hardware: HARDWARE, server };
                    let (send, _) = client.receive(now, &reply);
                    assert!(ours || send.is_none());
                }
            }
            client.wake(now);
        }
        now
    }

    proptest! {
        #[test]
        fn whatever_happened_a_server_that_answers_gives_an_address(seed: u64, happenings in happenings()) {
            let mut client = Client::new(HARDWARE, seed);
            let mut now = live(&mut client, happenings);
            for _ in 0..TAKES + 4 {
                now = now.max(client.deadline().unwrap_or(now));
                let (mut send, _) = client.wake(now);
                while let Some(sent) = send {
                    let (next, change) = client.receive(now, &serve(sent, &lease(HOUR)));
                    if let Some(Change::Bound(got)) = change {
                        prop_assert_eq!(got, lease(HOUR));
                        return Ok(());
                    }
                    send = next;
                }
            }
            prop_assert!(false, "never bound: {:?}", client);
        }

        #[test]
        fn it_never_asks_twice_in_a_second_on_its_own(seed: u64, happenings in happenings()) {
            let mut client = Client::new(HARDWARE, seed);
            let now = live(&mut client, happenings);
            let now = now.max(client.deadline().unwrap_or(now));
            client.wake(now);
            prop_assert!(client.deadline().is_none_or(|next| next >= now + Duration::from_secs(1)));
            prop_assert_eq!(client.wake(now), (None, None));
        }
    }
}
