//! Synchronization with servers on loopback.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clock::{Clock, ClockOffsets, Difference, Keeper, Leap, Nanoseconds};
use nix::errno::Errno;
use supervisor::{Settings, State as Service, Supervisor};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

const SECOND: Nanoseconds = 1_000_000_000;

/// Between the delay on loopback and the minimum step.
const CLOSE: Nanoseconds = SECOND / 20;

/// A clock with an offset, which records corrections, and its RTC.
#[derive(Clone, Debug, Default)]
struct FakeClock(Arc<Mutex<(Nanoseconds, Vec<Done>, Nanoseconds)>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Step(Nanoseconds),
    Slew(Nanoseconds),
}

impl FakeClock {
    fn off_by(offset: Nanoseconds) -> Self {
        Self(Arc::new(Mutex::new((offset, Vec::new(), 0))))
    }

    fn done(&self) -> Vec<Done> {
        self.0.lock().unwrap().1.clone()
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Nanoseconds {
        true_time() + self.0.lock().unwrap().0
    }

    fn step(&self, by: Nanoseconds) -> Result<(), Errno> {
        let mut inner = self.0.lock().unwrap();
        inner.0 += by;
        inner.1.push(Done::Step(by));
        Ok(())
    }

    fn slew(&self, by: Nanoseconds, _: u8, _: Leap) -> Result<(), Errno> {
        self.0.lock().unwrap().1.push(Done::Slew(by));
        Ok(())
    }

    fn offsets(&self) -> ClockOffsets {
        let (offset, _, rtc) = *self.0.lock().unwrap();
        ClockOffsets { rtc: Some(Difference::new([rtc, rtc + SECOND], [offset; 2])), ..ClockOffsets::default() }
    }
}

fn true_time() -> Nanoseconds {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos().try_into().unwrap()
}

/// NTP time.
fn ntp(time: Nanoseconds) -> [u8; 8] {
    let seconds = u64::try_from(time / SECOND + 2_208_988_800).unwrap();
    let fraction = ((u64::try_from(time % SECOND).unwrap()) << 32) / u64::try_from(SECOND).unwrap();
    (seconds << 32 | fraction).to_be_bytes()
}

/// A server that sends the packets that `reply` creates from a valid answer. Stops when the set is dropped.
async fn server(reply: impl Fn([u8; 48]) -> Vec<[u8; 48]> + Send + 'static) -> (SocketAddr, JoinSet<()>) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut question = [0; 100];
        loop {
            let (length, from) = socket.recv_from(&mut question).await.unwrap();
            assert_eq!((length, question[0] & 7), (48, 3), "a client's question");
            let mut answer = [0; 48];
            (answer[0], answer[1]) = (0x24, 1);
            answer[24..32].copy_from_slice(&question[40..48]);
            answer[32..40].copy_from_slice(&ntp(true_time()));
            answer[40..].copy_from_slice(&ntp(true_time()));
            for answer in reply(answer) {
                socket.send_to(&answer, from).await.unwrap();
            }
        }
    });
    (address, tasks)
}

fn good(answer: [u8; 48]) -> Vec<[u8; 48]> {
    vec![answer]
}

#[tokio::test]
async fn the_first_answer_sets_a_clock_that_is_far_off() {
    let (address, _server) = server(good).await;
    let clock = FakeClock::off_by(-3 * 365 * 86_400 * SECOND);
    let keeper = Keeper::new(vec![address], clock.clone());
    keeper.first().await.unwrap();
    let [Done::Step(by), Done::Slew(0)] = clock.done()[..] else { panic!("{:?}", clock.done()) };
    assert!((by - 3 * 365 * 86_400 * SECOND).abs() < CLOSE, "{by}");
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
    let [Done::Slew(by)] = clock.done()[..] else { panic!("{:?}", clock.done()) };
    assert!((by + SECOND / 25).abs() < CLOSE, "{by}");
    assert_eq!(keeper.state().borrow().steps, 0);
}

#[tokio::test]
async fn an_answer_to_another_request_is_ignored() {
    let forged = |mut answer: [u8; 48]| {
        let right = answer;
        answer[31] ^= 1;
        answer[32..40].copy_from_slice(&ntp(SECOND));
        vec![answer, [0; 48], right]
    };
    let (address, _server) = server(forged).await;
    let clock = FakeClock::off_by(0);
    Keeper::new(vec![address], clock.clone()).first().await.unwrap();
    let [Done::Slew(by)] = clock.done()[..] else { panic!("{:?}", clock.done()) };
    assert!(by.abs() < CLOSE, "{by}");
}

#[tokio::test]
async fn the_next_server_is_queried_after_an_unusable_answer() {
    let refuses = |mut answer: [u8; 48]| {
        answer[1] = 0;
        answer[12..16].copy_from_slice(b"DENY");
        vec![answer]
    };
    let knows_nothing = |mut answer: [u8; 48]| {
        answer[0] |= 0xc0;
        vec![answer]
    };
    let (one, _one) = server(refuses).await;
    let (two, _two) = server(knows_nothing).await;
    let (three, _three) = server(good).await;
    let clock = FakeClock::off_by(9 * SECOND);
    let keeper = Keeper::new(vec![one, two, three], clock.clone());
    keeper.first().await.unwrap();
    assert_eq!(keeper.state().borrow().last.unwrap().server, three);
}

#[tokio::test]
async fn the_service_is_healthy_without_a_server() {
    // Bound and closed, so that the kernel reports an unreachable port.
    let nobody = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
    let clock = FakeClock::off_by(9 * SECOND);
    let keeper = Arc::new(Keeper::new(vec![nobody], clock.clone()));
    let mut state = keeper.state();
    let tree = Supervisor::start("clock", Settings::default(), move |cx| Arc::clone(&keeper).run(cx));
    let failed = tokio::time::timeout(Duration::from_secs(30), state.wait_for(|state| state.problem.is_some())).await;
    let problem = failed.unwrap().unwrap().problem.clone().unwrap();
    assert!(problem.starts_with(&format!("cannot query {nobody}: ")), "{problem}");
    assert_eq!((tree.status().state, clock.done()), (Service::Healthy, Vec::new()));
    tree.stop(Duration::from_secs(5)).await.unwrap();
}

/// Corrections of a correct clock after a jump with a synchronized server, and the missed time.
async fn after(jump: impl FnOnce(&FakeClock)) -> (Vec<Done>, Duration) {
    let (address, _server) = server(good).await;
    let clock = FakeClock::off_by(0);
    let keeper = Arc::new(Keeper::new(vec![address], clock.clone()));
    let (mut state, mut missed) = (keeper.state(), keeper.missed());
    let tree = Supervisor::start("clock", Settings::default(), move |cx| Arc::clone(&keeper).run(cx));
    state.wait_for(|state| state.last.is_some()).await.unwrap();
    let before = clock.done().len();
    jump(&clock);
    tokio::time::timeout(Duration::from_secs(30), missed.changed()).await.unwrap().unwrap();
    tree.stop(Duration::from_secs(5)).await.unwrap();
    assert_eq!((state.borrow().jumps, state.borrow().last.unwrap().server), (1, address));
    (clock.done().split_off(before), *missed.borrow())
}

#[tokio::test]
async fn after_a_jump_a_later_answer_may_set_the_clock() {
    let (done, missed) = after(|clock| clock.0.lock().unwrap().0 = -3600 * SECOND).await;
    let [Done::Step(by), Done::Slew(0)] = done[..] else { panic!("{done:?}") };
    assert!((by - 3600 * SECOND).abs() < CLOSE, "{by}");
    assert_eq!(missed, Duration::from_nanos(by.unsigned_abs()));
}

#[tokio::test]
async fn a_changed_rtc_does_not_set_a_synchronized_clock() {
    let (done, missed) = after(|clock| clock.0.lock().unwrap().2 = 3600 * SECOND).await;
    let [Done::Slew(by)] = done[..] else { panic!("{done:?}") };
    assert!(by.abs() < CLOSE && missed < Duration::from_secs(1), "{by} {missed:?}");
}
