//! Who keeps the node's clock.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ::clock::{Clock as _, CorrectError, Keeper};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::kernel::Kernel;

/// Of SNTP servers.
const PORT: u16 = 123;

/// How long a node whose clock is wrong waits for somebody who tells it the time.
const PATIENCE: Duration = Duration::from_secs(15);

/// Sets a clock that cannot be right, one from before the kernel was made, by one of these servers if they answer:
/// certificates are made next. Any other clock is left to the service, and costs no time.
///
/// # Errors
/// [`CorrectError`].
pub async fn start(servers: &[Ipv4Addr]) -> Result<Arc<Keeper>, CorrectError> {
    let servers: Vec<SocketAddr> = servers.iter().map(|server| (*server, PORT).into()).collect();
    let keeper = Arc::new(Keeper::new(servers, ::clock::Kernel));
    let now = Duration::from_nanos(::clock::Kernel.now().try_into().unwrap_or(0));
    let built = Kernel::running().ok().and_then(|kernel| kernel.built());
    let is_wrong = built.is_some_and(|built| now.as_secs() < built.unix_timestamp().unsigned_abs());
    if is_wrong && !keeper.servers().is_empty() {
        info!("the clock is from before the kernel was made; a time server is asked");
        match timeout(PATIENCE, keeper.first()).await {
            Ok(set) => set?,
            Err(_) => warn!("no time server answers; the clock is wrong"),
        }
    } else if is_wrong {
        warn!("the clock is wrong, and the node has no time server; name one in the configuration, timeServers");
    }
    Ok(keeper)
}
