//! The DHCP client, RFC 2131 section 4.4, as a state machine without I/O: the caller passes the time and received
//! messages, and gets messages to send and changes of the lease. Times are relative to the creation of the client.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::lease::{Lease, Times};
use crate::message::{Answer, Hardware, Purpose, Reply, Request};

/// Time to wait for the first answer. It doubles with each attempt, up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(4);
const LONGEST: Duration = Duration::from_secs(64);
/// Attempts to request an offered address before a new discovery.
const TAKES: u32 = 4;
/// Minimum interval between attempts to extend a lease.
const KEEP: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) request: Request,
    /// Address of a server, or 255.255.255.255.
    pub(crate) to: Ipv4Addr,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The address is valid.
    Bound(Lease),
    /// The lease has expired without an answer from a server. The client continues to ask.
    Expired(Lease),
    /// A server withdrew the address. The client continues to ask.
    Lost(Lease),
}

#[derive(Clone, Debug)]
enum LeaseState {
    /// Requests offers, if possible of the previous address.
    Selecting {
        wished: Option<Ipv4Addr>,
    },
    /// Requested an offered address.
    Taking {
        offer: Lease,
    },
    Bound {
        lease: Lease,
        since: Duration,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Client {
    hardware: Hardware,
    state: LeaseState,
    transaction: u32,
    /// Number of messages without a valid answer.
    attempts: u32,
    /// Start of the current attempt to get a lease.
    began: Duration,
    deadline: Option<Duration>,
    /// State of the random number generator.
    seed: u64,
}

impl Client {
    /// A client with a message to send immediately. Use different seeds, so that clients that start at the same time do
    /// not keep sending at the same time.
    pub(crate) fn new(hardware: Hardware, seed: u64) -> Self {
        let mut client = Self {
            hardware,
            state: LeaseState::Selecting { wished: None },
            transaction: 0,
            attempts: 0,
            began: Duration::ZERO,
            deadline: Some(Duration::ZERO),
            seed,
        };
        client.transaction = client.draw();
        client
    }

    /// Time of the next call of [`Client::wake`]; `None` for never.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Number of messages since the last valid answer.
    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Performs the action that is due at the deadline. Does nothing before the deadline.
    pub(crate) fn wake(&mut self, now: Duration) -> (Option<Outgoing>, Option<Change>) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return (None, None);
        }
        match self.state.clone() {
            LeaseState::Selecting { wished } => (Some(self.discover(now, wished)), None),
            LeaseState::Taking { .. } if self.attempts >= TAKES => (Some(self.select(now, None)), None),
            LeaseState::Taking { offer } => (Some(self.take(now, &offer)), None),
            LeaseState::Bound { lease, since } => self.keep(now, lease, since),
        }
    }

    /// Processes a message. Ignores messages for other clients, and those that do not fit the state.
    pub(crate) fn receive(&mut self, now: Duration, reply: &Reply) -> (Option<Outgoing>, Option<Change>) {
        if reply.transaction != self.transaction || reply.hardware != self.hardware {
            return (None, None);
        }
        match (self.state.clone(), &reply.answer) {
            (LeaseState::Selecting { .. }, Answer::Offer(offer)) => {
                self.state = LeaseState::Taking { offer: offer.clone() };
                self.attempts = 0;
                (Some(self.take(now, offer)), None)
            }
            (LeaseState::Taking { offer }, Answer::Acknowledge(lease)) if offer.server == reply.server => {
                (None, Some(self.bind(now, lease.clone())))
            }
            // The server gave the address to another client. Wait, to avoid a busy loop.
            (LeaseState::Taking { offer }, Answer::Nak) if offer.server == reply.server => {
                self.state = LeaseState::Selecting { wished: None };
                self.attempts = self.attempts.max(1);
                self.deadline = Some(now.saturating_add(self.pause()));
                (None, None)
            }
            // No request is outstanding before the renewal time.
            (LeaseState::Bound { .. }, Answer::Acknowledge(lease)) if self.attempts > 0 => {
                (None, Some(self.bind(now, lease.clone())))
            }
            (LeaseState::Bound { lease, .. }, Answer::Nak) if self.attempts > 0 => {
                (Some(self.select(now, None)), Some(Change::Lost(lease)))
            }
            _ => (None, None),
        }
    }

    fn select(&mut self, now: Duration, wished: Option<Ipv4Addr>) -> Outgoing {
        self.attempts = 0;
        self.began = now;
        self.transaction = self.draw();
        self.state = LeaseState::Selecting { wished };
        self.discover(now, wished)
    }

    fn discover(&mut self, now: Duration, wished: Option<Ipv4Addr>) -> Outgoing {
        self.request(now, Purpose::Discover { wished })
    }

    fn take(&mut self, now: Duration, offer: &Lease) -> Outgoing {
        self.request(now, Purpose::Take { address: offer.interface.addr(), server: offer.server })
    }

    fn request(&mut self, now: Duration, purpose: Purpose) -> Outgoing {
        let send = self.send(now, purpose, Ipv4Addr::BROADCAST);
        self.deadline = Some(now.saturating_add(self.pause()));
        self.attempts = self.attempts.saturating_add(1);
        send
    }

    fn bind(&mut self, now: Duration, lease: Lease) -> Change {
        self.attempts = 0;
        self.deadline = lease.times().map(|times| now.saturating_add(times.renewal));
        self.state = LeaseState::Bound { lease: lease.clone(), since: now };
        Change::Bound(lease)
    }

    /// Requests an extension from the server, then from any server, and finally starts from the beginning.
    fn keep(&mut self, now: Duration, lease: Lease, since: Duration) -> (Option<Outgoing>, Option<Change>) {
        let Some(Times { rebinding, end, .. }) = lease.times() else {
            self.deadline = None;
            return (None, None);
        };
        let (rebinding, end) = (since.saturating_add(rebinding), since.saturating_add(end));
        let address = lease.interface.addr();
        if now >= end {
            return (Some(self.select(now, Some(address))), Some(Change::Expired(lease)));
        }
        if self.attempts == 0 {
            self.transaction = self.draw();
            self.began = now;
        }
        let (to, until) = if now < rebinding { (lease.server, rebinding) } else { (Ipv4Addr::BROADCAST, end) };
        let send = self.send(now, Purpose::Keep { address }, to);
        self.attempts = self.attempts.saturating_add(1);
        // Half of the remaining time, RFC 2131 section 4.4.5.
        let pause = (until.saturating_sub(now) / 2).max(KEEP);
        self.deadline = Some(now.saturating_add(pause).min(until.max(now.saturating_add(Duration::from_secs(1)))));
        (Some(send), None)
    }

    fn send(&self, now: Duration, purpose: Purpose, to: Ipv4Addr) -> Outgoing {
        let elapsed = now.saturating_sub(self.began);
        let request = Request { purpose, transaction: self.transaction, elapsed, hardware: self.hardware };
        Outgoing { request, to }
    }

    /// Adds up to a second more or less, RFC 2131 section 4.1.
    fn pause(&mut self) -> Duration {
        let longer = FIRST.saturating_mul(1_u32.checked_shl(self.attempts).unwrap_or(u32::MAX)).min(LONGEST);
        longer - Duration::from_secs(1) + Duration::from_millis(u64::from(self.draw() % 2000))
    }

    /// SplitMix64, not cryptographically secure.
    fn draw(&mut self) -> u32 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 32) as u32
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const HARDWARE: Hardware = [2, 0, 0, 0, 0, 1];
    const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const HOUR: Duration = Duration::from_secs(3600);

    pub(crate) fn lease(time: Duration) -> Lease {
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

    fn answered(send: Outgoing, answer: Answer) -> Reply {
        let Request { transaction, hardware, .. } = send.request;
        Reply { answer, transaction, hardware, server: SERVER }
    }

    fn serve(send: Outgoing, lease: &Lease) -> Reply {
        let answer = match send.request.purpose {
            Purpose::Discover { .. } => Answer::Offer(lease.clone()),
            Purpose::Take { .. } | Purpose::Keep { .. } => Answer::Acknowledge(lease.clone()),
        };
        answered(send, answer)
    }

    /// A client that got a lease at time 0.
    fn bound(time: Duration) -> Client {
        let mut client = Client::new(HARDWARE, 1);
        let discover = client.wake(Duration::ZERO).0.unwrap();
        let take = client.receive(Duration::ZERO, &serve(discover, &lease(time))).0.unwrap();
        assert_eq!(take.request.purpose, Purpose::Take { address: lease(time).interface.addr(), server: SERVER });
        assert_eq!(
            client.receive(Duration::ZERO, &serve(take, &lease(time))),
            (None, Some(Change::Bound(lease(time))))
        );
        client
    }

    #[test]
    fn without_an_answer_the_interval_increases_to_the_maximum() {
        let mut client = Client::new(HARDWARE, 1);
        let mut now = Duration::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..40 {
            let (send, change) = client.wake(now);
            assert_eq!(send.unwrap().request.purpose, Purpose::Discover { wished: None });
            assert_eq!(change, None);
            let next = client.deadline().unwrap();
            pauses.push((next - now).as_secs());
            now = next;
        }
        assert!((3..=5).contains(&pauses[0]) && (7..=9).contains(&pauses[1]), "{pauses:?}");
        assert!(pauses[4..].iter().all(|pause| (63..=65).contains(pause)), "{pauses:?}");
    }

    #[test]
    fn a_lease_is_renewed_at_half_time_with_its_server() {
        let mut client = bound(HOUR);
        assert_eq!(client.deadline(), Some(HOUR / 2));
        assert_eq!(client.wake(HOUR / 2 - Duration::from_secs(1)), (None, None));
        let keep = client.wake(HOUR / 2).0.unwrap();
        assert_eq!((keep.request.purpose, keep.to), (Purpose::Keep { address: lease(HOUR).interface.addr() }, SERVER));
        let (send, change) = client.receive(HOUR / 2, &serve(keep, &lease(HOUR)));
        assert_eq!((send, change), (None, Some(Change::Bound(lease(HOUR)))));
        assert_eq!(client.deadline(), Some(HOUR));
    }

    #[test]
    fn a_lease_that_is_not_renewed_expires_and_is_requested_again() {
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
        let wished = Some(lease(HOUR).interface.addr());
        assert_eq!(expired.0.request.purpose, Purpose::Discover { wished });
        assert_eq!(expired.1, Change::Expired(lease(HOUR)));
        assert!((8..30).contains(&asked) && rebinding > 2, "{asked} {rebinding}");
    }

    #[test]
    fn a_nak_ends_the_use_of_an_address() {
        let mut client = bound(HOUR);
        let keep = client.wake(HOUR / 2).0.unwrap();
        let (send, change) = client.receive(HOUR / 2, &answered(keep, Answer::Nak));
        assert_eq!(send.unwrap().request.purpose, Purpose::Discover { wished: None });
        assert_eq!(change, Some(Change::Lost(lease(HOUR))));
    }

    #[test]
    fn unexpected_messages_are_ignored() {
        let mut client = bound(HOUR);
        let sent = Outgoing {
            request: Request {
                purpose: Purpose::Discover { wished: None },
                transaction: client.transaction,
                elapsed: Duration::ZERO,
                hardware: HARDWARE,
            },
            to: SERVER,
        };
        for answer in [Answer::Nak, Answer::Offer(lease(HOUR)), Answer::Acknowledge(lease(HOUR))] {
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
    fn an_infinite_lease_is_never_renewed() {
        let mut client = Client::new(HARDWARE, 1);
        let endless = Lease { time: None, ..lease(HOUR) };
        let discover = client.wake(Duration::ZERO).0.unwrap();
        let take = client.receive(Duration::ZERO, &serve(discover, &endless)).0.unwrap();
        client.receive(Duration::ZERO, &serve(take, &endless));
        assert_eq!(client.deadline(), None);
        assert_eq!(client.wake(Duration::MAX), (None, None));
    }

    /// Input of a client: time passes, or a message arrives.
    #[derive(Clone, Debug)]
    enum Event {
        Passes(Duration),
        Deadline,
        Comes { answer: Answer, ours: bool, server: Ipv4Addr },
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let answer = prop_oneof![
            Just(Answer::Nak),
            (0_u64..100_000).prop_map(|seconds| Answer::Offer(lease(Duration::from_secs(seconds)))),
            (0_u64..100_000).prop_map(|seconds| Answer::Acknowledge(lease(Duration::from_secs(seconds)))),
        ];
        let server = prop_oneof![3 => Just(SERVER), 1 => Just(Ipv4Addr::new(192, 0, 2, 2))];
        let happening = prop_oneof![
            (0_u64..100_000).prop_map(|seconds| Event::Passes(Duration::from_secs(seconds))),
            Just(Event::Deadline),
            (answer, any::<bool>(), server).prop_map(|(answer, ours, server)| Event::Comes { answer, ours, server }),
        ];
        vec(happening, 0..60)
    }

    fn live(client: &mut Client, events: Vec<Event>) -> Duration {
        let mut now = Duration::ZERO;
        for happening in events {
            match happening {
                Event::Passes(time) => now += time,
                Event::Deadline => now = now.max(client.deadline().unwrap_or(now)),
                Event::Comes { answer, ours, server } => {
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
        fn after_any_events_an_answering_server_provides_a_lease(seed: u64, events in events()) {
            let mut client = Client::new(HARDWARE, seed);
            let mut now = live(&mut client, events);
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
        fn at_most_one_message_per_second_is_sent_unprompted(seed: u64, events in events()) {
            let mut client = Client::new(HARDWARE, seed);
            let now = live(&mut client, events);
            let now = now.max(client.deadline().unwrap_or(now));
            client.wake(now);
            prop_assert!(client.deadline().is_none_or(|next| next >= now + Duration::from_secs(1)));
            prop_assert_eq!(client.wake(now), (None, None));
        }
    }
}
