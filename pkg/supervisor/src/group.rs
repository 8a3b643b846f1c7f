//! Services that fail together.

use crate::context::Context;
use crate::service::Service;
use crate::{BoxError, Ended};

/// Services of which none makes sense without the others: if one fails, all are stopped, and all start
/// again after one wait. In the tree a group is a service of its own, healthy once every member is.
#[derive(Clone, Default)]
pub struct Group {
    members: Vec<(String, Service)>,
}

impl Group {
    /// A group without members.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a member. Members start in this order, without waiting for each other, and stop in the opposite one.
    #[must_use]
    pub fn with<F, Fut, E>(mut self, name: impl Into<String>, service: F) -> Self
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.members.push((name.into(), Service::new(service)));
        self
    }

    /// The service that the group is.
    pub(crate) fn into_service(self) -> Service {
        Service::new(move |cx: Context| {
            let handles: Vec<_> =
                self.members.iter().map(|(name, service)| cx.start_member(name.clone(), service.clone())).collect();
            async move {
                for member in &handles {
                    member.healthy().await?;
                }
                cx.healthy();
                cx.cancelled().await;
                Ok::<(), Ended>(())
            }
        })
    }
}
