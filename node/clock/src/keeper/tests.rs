use std::net::Ipv4Addr;
use std::sync::MutexGuard;
use std::time::{SystemTime, UNIX_EPOCH};

use supervisor::{Settings, State, Supervisor};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

use super::*;
use crate::packet::LENGTH;
use crate::packet::tests::{answer, ntp};
use crate::{Difference, Nanoseconds};

const SECOND: Nanoseconds = 1_000_000_000;
const HOUR: Nanoseconds = 3600 * SECOND;

/// Limit between the delay on loopback and the minimum step.
const CLOSE: Nanoseconds = SECOND / 20;

/// A clock that records corrections, with an RTC and a suspension time.
#[derive(Clone, Debug, Default)]
struct FakeClock(Arc<std::sync::Mutex<FakeTimes>>);

#[derive(Debug, Default)]
struct FakeTimes {
    offset: Nanoseconds,
    rtc: Nanoseconds,
    suspended: Nanoseconds,
    corrections: Vec<Correction>,
}

impl FakeClock {
    fn off_by(offset: Nanoseconds) -> Self {
        let clock = Self::default();
        clock.times().offset = offset;
        clock
    }

    fn times(&self) -> MutexGuard<'_, FakeTimes> {
        self.0.lock().unwrap()
    }

    fn corrections(&self) -> Vec<Correction> {
        self.times().corrections.clone()
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Nanoseconds {
        true_time() + self.times().offset
    }

    fn step(&self, by: Nanoseconds) -> Result<(), Errno> {
        let mut times = self.times();
        times.offset += by;
        times.corrections.push(Correction::Step(by));
        Ok(())
    }

    fn slew(&self, by: Nanoseconds, _: u8, _: Leap) -> Result<(), Errno> {
        self.times().corrections.push(Correction::Slew(by));
        Ok(())
    }

    fn offsets(&self) -> ClockOffsets {
        let FakeTimes { offset, rtc, suspended, .. } = *self.times();
        ClockOffsets {
            rtc: Some(Difference::new([rtc, rtc + SECOND], [offset; 2])),
            suspended: Difference::new([suspended; 2], [0; 2]),
        }
    }
}

fn true_time() -> Nanoseconds {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos().try_into().unwrap()
}

/// A server on loopback that sends the packets that `reply` creates from a valid answer, until the set is dropped.
async fn server(reply: impl Fn([u8; LENGTH]) -> Vec<[u8; LENGTH]> + Send + 'static) -> (SocketAddr, JoinSet<()>) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut question = [0; 100];
        loop {
            let (length, from) = socket.recv_from(&mut question).await.unwrap();
            assert_eq!((length, question[0] & 7), (LENGTH, 3), "a client's question");
            let cookie = u64::from_be_bytes(question[40..48].try_into().unwrap());
            for answer in reply(answer(cookie, true_time(), true_time())) {
                socket.send_to(&answer, from).await.unwrap();
            }
        }
    });
    (address, tasks)
}

fn good(answer: [u8; LENGTH]) -> Vec<[u8; LENGTH]> {
    vec![answer]
}

#[tokio::test]
async fn the_first_answer_sets_a_clock_that_is_far_off() {
    let (address, _server) = server(good).await;
    let clock = FakeClock::off_by(-3 * 365 * 24 * HOUR);
    let keeper = Keeper::new(vec![address], clock.clone());
    keeper.first().await.unwrap();
    let [Correction::Step(by), Correction::Slew(0)] = clock.corrections()[..] else { panic!("{clock:?}") };
    assert!((by - 3 * 365 * 24 * HOUR).abs() < CLOSE, "{by}");
    assert!((clock.now() - true_time()).abs() < CLOSE);
    let state = keeper.state().borrow().clone();
    assert_eq!((state.steps, state.last.unwrap().server, state.problem), (1, address, None));
}

#[tokio::test]
async fn a_small_offset_is_slewed() {
    let (address, _server) = server(good).await;
    let clock = FakeClock::off_by(SECOND / 25);
    let keeper = Keeper::new(vec![address], clock.clone());
    keeper.first().await.unwrap();
    let [Correction::Slew(by)] = clock.corrections()[..] else { panic!("{clock:?}") };
    assert!((by + SECOND / 25).abs() < CLOSE, "{by}");
    assert_eq!(keeper.state().borrow().steps, 0);
}

#[tokio::test]
async fn an_answer_to_another_request_is_ignored() {
    let forged = |mut answer: [u8; LENGTH]| {
        let right = answer;
        answer[31] ^= 1;
        answer[32..40].copy_from_slice(&ntp(SECOND).to_be_bytes());
        vec![answer, [0; LENGTH], right]
    };
    let (address, _server) = server(forged).await;
    let clock = FakeClock::default();
    Keeper::new(vec![address], clock.clone()).first().await.unwrap();
    let [Correction::Slew(by)] = clock.corrections()[..] else { panic!("{clock:?}") };
    assert!(by.abs() < CLOSE, "{by}");
}

#[tokio::test]
async fn the_next_server_is_queried_after_an_unusable_answer() {
    let kiss_of_death = |mut answer: [u8; LENGTH]| {
        answer[1] = 0;
        answer[12..16].copy_from_slice(b"DENY");
        vec![answer]
    };
    let unsynchronized = |mut answer: [u8; LENGTH]| {
        answer[0] |= 0xc0;
        vec![answer]
    };
    let (one, _one) = server(kiss_of_death).await;
    let (two, _two) = server(unsynchronized).await;
    let (three, _three) = server(good).await;
    let keeper = Keeper::new(vec![one, two, three], FakeClock::off_by(9 * SECOND));
    keeper.first().await.unwrap();
    assert_eq!(keeper.state().borrow().last.unwrap().server, three);
}

#[tokio::test]
async fn the_service_is_healthy_without_a_server() {
    // The socket is bound and closed, so that the kernel reports an unreachable port.
    let closed = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
    let clock = FakeClock::off_by(9 * SECOND);
    let keeper = Arc::new(Keeper::new(vec![closed], clock.clone()));
    let mut state = keeper.state();
    let tree = Supervisor::start("clock", Settings::default(), move |cx| Arc::clone(&keeper).run(cx));
    let failed = timeout(30 * LOOK, state.wait_for(|state| state.problem.is_some())).await;
    let problem = failed.unwrap().unwrap().problem.clone().unwrap();
    assert!(problem.starts_with(&format!("cannot query {closed}: ")), "{problem}");
    assert_eq!((tree.status().state, clock.corrections()), (State::Healthy, Vec::new()));
    tree.stop(Duration::from_secs(5)).await.unwrap();
}

/// Corrections of a correct clock after a jump, and the missed time.
async fn after(servers: &[SocketAddr], jump: impl FnOnce(&mut FakeTimes)) -> (Vec<Correction>, ClockState, Duration) {
    let clock = FakeClock::default();
    let keeper = Arc::new(Keeper::new(servers.to_vec(), clock.clone()));
    let (mut state, mut missed) = (keeper.state(), keeper.missed());
    let tree = Supervisor::start("clock", Settings::default(), move |cx| Arc::clone(&keeper).run(cx));
    tree.handle().healthy().await.unwrap();
    state.wait_for(|state| servers.is_empty() || state.last.is_some()).await.unwrap();
    let before = clock.corrections().len();
    jump(&mut clock.times());
    timeout(30 * LOOK, missed.changed()).await.unwrap().unwrap();
    tree.stop(Duration::from_secs(5)).await.unwrap();
    let state = state.borrow().clone();
    assert_eq!((state.jumps, state.last.map(|last| last.server)), (1, servers.first().copied()));
    (clock.corrections().split_off(before), state, *missed.borrow())
}

#[tokio::test]
async fn without_a_server_the_rtc_sets_the_clock_forward() {
    let (corrections, state, missed) = after(&[], |times| times.rtc = HOUR).await;
    let [Correction::Step(by)] = corrections[..] else { panic!("{corrections:?}") };
    assert!((by - HOUR).abs() <= SECOND, "{by}");
    assert_eq!((missed, state.steps), (Duration::from_nanos(by.unsigned_abs()), 1));
}

#[tokio::test]
async fn a_suspension_is_reported_as_a_jump_and_a_step() {
    let (corrections, state, missed) = after(&[], |times| times.suspended = HOUR).await;
    assert_eq!((corrections, state.steps, missed), (Vec::new(), 1, Duration::from_secs(3600)));
}

#[tokio::test]
async fn after_a_jump_a_later_answer_may_set_the_clock() {
    let (address, _server) = server(good).await;
    let (corrections, _, missed) = after(&[address], |times| times.offset = -HOUR).await;
    let [Correction::Step(by), Correction::Slew(0)] = corrections[..] else { panic!("{corrections:?}") };
    assert!((by - HOUR).abs() < CLOSE, "{by}");
    assert_eq!(missed, Duration::from_nanos(by.unsigned_abs()));
}

#[tokio::test]
async fn a_changed_rtc_does_not_set_a_synchronized_clock() {
    let (address, _server) = server(good).await;
    let (corrections, _, missed) = after(&[address], |times| times.rtc = HOUR).await;
    let [Correction::Slew(by)] = corrections[..] else { panic!("{corrections:?}") };
    assert!(by.abs() < CLOSE && missed < Duration::from_secs(1), "{by} {missed:?}");
}

/// Total step and number of steps after answers with these offsets.
fn set_by(first: Allowed, offsets: &[Nanoseconds]) -> (Nanoseconds, u32) {
    let clock = FakeClock::default();
    let keeper = Keeper::new(Vec::new(), clock.clone());
    let server = SocketAddr::from(([127, 0, 0, 1], 123));
    for &offset in offsets {
        let sample = Sample { offset, delay: 0, leap: Leap::None };
        keeper.correct(server, sample, Poll::default(), first).unwrap();
    }
    let steps = keeper.state.borrow().steps;
    (clock.times().offset, steps)
}

#[test]
fn before_programs_run_the_clock_is_set_once() {
    assert_eq!(set_by(Allowed::Any, &[HOUR, HOUR]), (HOUR, 1));
    assert_eq!(set_by(Allowed::Any, &[-HOUR, -HOUR]), (-HOUR, 1));
}

#[test]
fn while_programs_run_the_clock_is_never_set_back() {
    assert_eq!(set_by(Allowed::Forwards, &[-HOUR, -HOUR]), (0, 0));
    assert_eq!(set_by(Allowed::Forwards, &[HOUR, HOUR, -HOUR]), (HOUR, 1));
}
