//! The first setting of the node's clock.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ::clock::{Clock, Keeper};
use time::UtcDateTime;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::kernel::Kernel;

const PORT: u16 = 123;

/// Time that a node with a wrong clock waits for a time server.
const PATIENCE: Duration = Duration::from_secs(15);

/// Time that a node whose clock may be correct waits for a time server.
const GLANCE: Duration = Duration::from_secs(2);

/// Sets the clock from one of these servers if they answer. The node signs certificates next, and never sets the clock
/// back afterwards. A clock before the kernel's build date is wrong: the node waits longer for an answer. Without an
/// answer, the clock stays as it is.
pub async fn start(servers: &[Ipv4Addr]) -> Arc<Keeper> {
    let servers = servers.iter().map(|server| (*server, PORT).into()).collect();
    let built = Kernel::running().ok().and_then(|kernel| kernel.built());
    keep(servers, ::clock::Kernel, built).await
}

async fn keep(servers: Vec<SocketAddr>, clock: impl Clock, built: Option<UtcDateTime>) -> Arc<Keeper> {
    let now = Duration::from_nanos(clock.now().try_into().unwrap_or(0));
    let is_wrong = built.is_some_and(|built| now.as_secs() < built.unix_timestamp().unsigned_abs());
    let keeper = Arc::new(Keeper::new(servers, clock));
    if keeper.servers().is_empty() {
        if is_wrong {
            warn!("the clock is wrong, and the node has no time server; set timeServers in the configuration");
        }
        return keeper;
    }
    if is_wrong {
        info!("clock is before the kernel's build date, asking the time servers");
    }
    match timeout(if is_wrong { PATIENCE } else { GLANCE }, keeper.first()).await {
        Ok(Ok(())) => {}
        // The server's answer may cause the error, and the clock service asks again.
        Ok(Err(error)) => warn!(error = causes::of(&error), "cannot set the clock, continuing with the present time"),
        Err(_) if is_wrong => warn!("no answer from a time server, the clock is wrong"),
        Err(_) => info!("no answer from a time server yet, continuing with the present time"),
    }
    keeper
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ::clock::{Leap, Nanoseconds};
    use nix::errno::Errno;
    use tokio::net::UdpSocket;
    use tokio::task::JoinSet;

    use super::*;

    const SECOND: Nanoseconds = 1_000_000_000;

    /// The server's time since 1970.
    const TRUE: Nanoseconds = 1_800_000_000 * SECOND;

    /// A clock that stands still, and the kernel's result of setting it.
    #[derive(Clone, Debug)]
    struct FakeClock {
        now: Arc<Mutex<Nanoseconds>>,
        set: Result<(), Errno>,
    }

    impl FakeClock {
        fn at(now: Nanoseconds, set: Result<(), Errno>) -> Self {
            Self { now: Arc::new(Mutex::new(now)), set }
        }
    }

    impl Clock for FakeClock {
        fn now(&self) -> Nanoseconds {
            *self.now.lock().unwrap()
        }

        fn step(&self, by: Nanoseconds) -> Result<(), Errno> {
            self.set?;
            *self.now.lock().unwrap() += by;
            Ok(())
        }

        fn slew(&self, _: Nanoseconds, _: u8, _: Leap) -> Result<(), Errno> {
            self.set
        }
    }

    /// A server that answers with [`TRUE`]. It stops when the set is dropped.
    async fn server() -> (SocketAddr, JoinSet<()>) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut question = [0; 48];
            loop {
                let (_, from) = socket.recv_from(&mut question).await.unwrap();
                let mut answer = [0; 48];
                (answer[0], answer[1]) = (0x24, 1);
                answer[24..32].copy_from_slice(&question[40..48]);
                let time = (u64::try_from(TRUE / SECOND).unwrap() + 2_208_988_800) << 32;
                answer[32..40].copy_from_slice(&time.to_be_bytes());
                answer[40..].copy_from_slice(&time.to_be_bytes());
                socket.send_to(&answer, from).await.unwrap();
            }
        });
        (address, tasks)
    }

    fn built() -> Option<UtcDateTime> {
        UtcDateTime::from_unix_timestamp(1_780_000_000).ok()
    }

    /// Regression: the clock was set after the services had signed certificates that were not valid yet.
    #[tokio::test]
    async fn a_clock_that_is_ahead_is_set_before_certificates_are_signed() {
        let (address, _server) = server().await;
        let clock = FakeClock::at(TRUE + 10 * 86_400 * SECOND, Ok(()));
        let keeper = keep(vec![address], clock.clone(), built()).await;
        assert!((clock.now() - TRUE).abs() < SECOND, "{}", clock.now());
        assert_eq!(keeper.state().borrow().steps, 1);
    }

    /// Regression: the error ended the boot.
    #[tokio::test]
    async fn a_clock_that_cannot_be_set_goes_on() {
        let (address, _server) = server().await;
        let clock = FakeClock::at(5 * SECOND, Err(Errno::EINVAL));
        let keeper = keep(vec![address], clock.clone(), built()).await;
        assert_eq!((clock.now(), keeper.state().borrow().steps), (5 * SECOND, 0));
    }

    #[tokio::test]
    async fn servers_that_say_nothing_delay_the_boot_by_a_moment() {
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let clock = FakeClock::at(TRUE, Ok(()));
        let keep = keep(vec![silent.local_addr().unwrap()], clock.clone(), built());
        timeout(PATIENCE / 2, keep).await.unwrap();
        assert_eq!(clock.now(), TRUE);
    }
}
