//! What a test hears of the log.

use std::sync::{Arc, Mutex};

use crate::{Record, Sink};

/// Keeps what it gets. All clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<Vec<Record>>>);

impl Sink for Kept {
    fn take(&self, record: &Record) {
        self.0.lock().unwrap().push(record.clone());
    }
}

impl Kept {
    pub(crate) fn records(&self) -> Vec<Record> {
        self.0.lock().unwrap().clone()
    }
}
