//! Services under test, started like on a node.

use supervisor::{BoxError, Context, Settings, Supervisor};

use crate::Failure;

/// Starts a service, and waits until it is healthy.
pub async fn start<T, F, E>(name: &str, argument: T, run: fn(Context, T) -> F) -> Result<Supervisor, Failure>
where
    T: Clone + Send + Sync + 'static,
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<BoxError> + 'static,
{
    let tree = Supervisor::start(name, Settings::default(), move |cx| run(cx, argument.clone()));
    tree.handle().healthy().await?;
    Ok(tree)
}
