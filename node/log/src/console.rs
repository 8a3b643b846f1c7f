//! The log as lines for a person.

use std::io::{self, Write};

use tracing::Level;

use crate::record::{Origin, Record};
use crate::stream::Sink;

/// Standard output, which is the node's console. Lines are written at once: the last one is there when the node dies.
///
/// The kernel prints its messages there itself, as `loglevel=` of its command line says.
#[derive(Clone, Copy, Debug)]
pub struct Console {
    /// From which level on other programs are heard: a serial console is slow, and they have much to say.
    pub programs: Level,
}

impl Console {
    fn shows(self, record: &Record) -> bool {
        match record.origin {
            Origin::Module(_) => true,
            Origin::Program(_) => record.level <= self.programs,
            Origin::Kernel | Origin::Kmsg => false,
        }
    }
}

impl Sink for Console {
    fn take(&self, record: &Record) {
        if self.shows(record) {
            // `println!` panics when the console is gone.
            let _ = writeln!(io::stdout().lock(), "{}", record.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_heard_from_a_level_on_and_the_kernel_speaks_for_itself() {
        let console = Console { programs: Level::WARN };
        let shows = |level, origin| console.shows(&Record::now(level, origin, "x"));
        assert!(shows(Level::DEBUG, Origin::Module("csi".into())));
        assert!(shows(Level::WARN, Origin::Program("etcd".to_owned())));
        assert!(!shows(Level::INFO, Origin::Program("etcd".to_owned())));
        assert!(!shows(Level::ERROR, Origin::Kernel));
        assert!(!shows(Level::ERROR, Origin::Kmsg));
    }
}
