//! A sink for tests.

use std::sync::{Arc, Mutex};

use crate::{Record, Sink};

/// Stores the records. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct FakeSink(Arc<Mutex<Vec<Record>>>);

impl Sink for FakeSink {
    fn take(&self, record: &Record) {
        self.0.lock().unwrap().push(record.clone());
    }
}

impl FakeSink {
    pub(crate) fn records(&self) -> Vec<Record> {
        self.0.lock().unwrap().clone()
    }
}
