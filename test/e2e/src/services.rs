//! The services of the node, as its status reports them.

use crate::{Case, Failure, PATIENCE, Seen, eventually};

impl Case {
    pub async fn all_services_are_ready(&self) -> Result<(), Failure> {
        eventually(PATIENCE, "all services to be ready", async || {
            // If services are not ready, the response is an error with their names.
            let said = match self.get("/api/v1/nodes/granary:7839/proxy/readyz").await {
                Err(Failure::Api { source, .. }) => match *source {
                    kube::Error::Api(status) => status.message,
                    other => other.to_string(),
                },
                said => said?,
            };
            Ok(if said == "ok\n" { Seen::Done(()) } else { Seen::NotYet(said) })
        })
        .await
    }
}
