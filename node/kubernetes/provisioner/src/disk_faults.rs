//! Metric of the disk's faults, read at each scrape. It is available even if the rest of the disk's metrics cannot be
//! read.

use fsquota::FsError;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts};
use tracing::warn;
use volume::DiskFault;

pub(crate) struct DiskFaults<L> {
    read: L,
    gauges: IntGaugeVec,
}

impl<L: Fn() -> Result<Vec<DiskFault>, FsError> + Send + Sync> DiskFaults<L> {
    /// `read` runs at each scrape.
    pub(crate) fn new(read: L) -> Result<Self, prometheus::Error> {
        let help = "Faults of the data disk that the kernel has detected.";
        let gauges = IntGaugeVec::new(Opts::new("granary_disk_faults", help), &["fault"])?;
        Ok(Self { read, gauges })
    }
}

impl<L: Fn() -> Result<Vec<DiskFault>, FsError> + Send + Sync> Collector for DiskFaults<L> {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let faults = match (self.read)() {
            Ok(faults) => faults,
            Err(error) => {
                warn!(error = causes::of(&error), "reading the disk's faults failed, their metric is missing");
                return Vec::new();
            }
        };
        for kind in DiskFault::KINDS {
            let count = faults.iter().find(|fault| fault.kind() == kind).map_or(0, DiskFault::count);
            self.gauges.with_label_values(&[kind]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.gauges.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use fsquota::Fault;
    use prometheus::{Registry, TextEncoder};

    use super::*;

    fn text(read: impl Fn() -> Result<Vec<DiskFault>, FsError> + Send + Sync + 'static) -> String {
        let registry = Registry::new();
        registry.register(Box::new(DiskFaults::new(read).unwrap())).unwrap();
        TextEncoder::new().encode_to_string(&registry.gather()).expect("text")
    }

    #[test]
    fn every_kind_of_fault_has_a_series() {
        let failed = NonZeroU64::new(7).map(DiskFault::Requests);
        let text =
            text(move || Ok([DiskFault::FileSystem(Fault::ShutDown)].into_iter().chain(failed.clone()).collect()));
        let values: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            values,
            [
                r#"granary_disk_faults{fault="groups"} 0"#,
                r#"granary_disk_faults{fault="io"} 7"#,
                r#"granary_disk_faults{fault="metadata"} 0"#,
                r#"granary_disk_faults{fault="shutdown"} 1"#,
                r#"granary_disk_faults{fault="smart"} 0"#,
            ]
        );
    }

    #[test]
    fn unknown_faults_are_not_zero() {
        assert_eq!(text(|| Err(FsError::NotXfs)), "");
    }
}
