//! The metrics of services. docs/metrics.md describes each metric.

use prometheus::core::Collector;
use prometheus::{IntGaugeVec, Opts, Registry, TextEncoder};

use crate::Service;

/// The text for [`Source::metrics`](crate::Source::metrics): the registered metrics, and the current ones of the
/// services and `others`.
pub fn metrics(
    registry: &Registry,
    services: &[Service],
    others: impl IntoIterator<Item = Box<dyn Collector>>,
) -> Result<String, prometheus::Error> {
    let now = Registry::new();
    for collector in collectors(services)?.into_iter().chain(others) {
        now.register(collector)?;
    }
    TextEncoder::new().encode_to_string(&[registry.gather(), now.gather()].concat())
}

fn collectors(services: &[Service]) -> Result<[Box<dyn Collector>; 3], prometheus::Error> {
    let gauge = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &["service"]);
    let ready = gauge("granary_service_ready", "Whether a service is ready or has completed: 0 or 1.")?;
    let restarts =
        gauge("granary_service_restarts", "Restarts of a service since the last start of its parent service.")?;
    let stalled = gauge(
        "granary_service_stalled_seconds",
        "How long a service has made no progress, if that exceeds its deadline, else 0.",
    )?;
    for service in services {
        let labels = [&*service.path];
        ready.with_label_values(&labels).set(service.is_ready().into());
        restarts.with_label_values(&labels).set(service.restarts.into());
        let seconds = service.stalled.map_or(0, |time| time.as_secs());
        stalled.with_label_values(&labels).set(seconds.try_into().unwrap_or(i64::MAX));
    }
    Ok([Box::new(ready), Box::new(restarts), Box::new(stalled)])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sample;

    fn services() -> Vec<Service> {
        let mut services = sample::example().services;
        services[11].stalled = Some(Duration::from_secs(400));
        services
    }

    #[test]
    fn metrics_and_their_documentation_match() {
        docs::assert_described("Services", collectors(&services()).unwrap());
    }

    #[test]
    fn a_service_has_one_series_of_each() {
        let text = metrics(&Registry::new(), &services(), []).unwrap();
        for line in [
            r#"granary_service_ready{service="granary.etcd"} 1"#,
            r#"granary_service_restarts{service="granary.etcd"} 1"#,
            r#"granary_service_stalled_seconds{service="granary.etcd"} 0"#,
            r#"granary_service_ready{service="granary.kube-proxy"} 0"#,
            r#"granary_service_ready{service="granary.provisioner.volumes"} 0"#,
            r#"granary_service_stalled_seconds{service="granary.provisioner.volumes"} 400"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        }
        let text = metrics(&Registry::new(), &[], []).unwrap();
        assert!(!text.contains("granary.etcd"), "a service that is gone has no series:\n{text}");
    }
}
