//! Fake pods, which write, and stop when the store requires it.

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use volume::{FrozenPods, PodFreezer, Store, VolumeId};

/// Behaviour of a freezer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freezing {
    #[default]
    Works,
    Fails,
    /// The pods ran again before the thaw, because the budget was exceeded.
    EndsEarly,
    /// The budget is exceeded before the last pass over files.
    IsLate,
    /// The process ends before the thaw returns.
    Dies,
}

#[derive(Debug, Default)]
pub struct Pods(Arc<Gate>);

#[derive(Debug, Default)]
struct Gate {
    /// A write holds this lock.
    running: Mutex<()>,
    /// Set before the freezer waits for the end of a write. Otherwise the writer would get the lock again and again.
    is_frozen: AtomicBool,
    freezes: AtomicUsize,
    freezing: Mutex<Freezing>,
}

struct Frozen(Arc<Gate>);

impl Pods {
    /// Registers pods with the store, for as long as the result exists.
    pub fn of(store: &Store) -> Arc<Self> {
        let pods = Arc::new(Self::default());
        let freezer: Arc<dyn PodFreezer> = pods.clone();
        store.freeze_by(Arc::downgrade(&freezer));
        pods
    }

    pub fn write<T>(&self, write: impl FnOnce() -> T) -> T {
        loop {
            while self.0.is_frozen.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            let _running = self.0.running.lock().unwrap();
            if !self.0.is_frozen.load(Ordering::SeqCst) {
                return write();
            }
        }
    }

    pub fn freezes(&self) -> usize {
        self.0.freezes.load(Ordering::Relaxed)
    }

    pub fn set(&self, freezing: Freezing) {
        *self.0.freezing.lock().unwrap() = freezing;
    }
}

impl PodFreezer for Pods {
    fn freeze(&self, ids: &[VolumeId], _: Duration) -> Result<Box<dyn FrozenPods>, Box<dyn Error + Send + Sync>> {
        assert!(!ids.is_empty());
        if *self.0.freezing.lock().unwrap() == Freezing::Fails {
            return Err("no cgroups".into());
        }
        self.0.is_frozen.store(true, Ordering::SeqCst);
        drop(self.0.running.lock().unwrap());
        self.0.freezes.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Frozen(Arc::clone(&self.0))))
    }
}

impl FrozenPods for Frozen {
    fn deadline(&self) -> Option<Instant> {
        (*self.0.freezing.lock().unwrap() == Freezing::IsLate).then(Instant::now)
    }

    fn thaw(self: Box<Self>) -> Result<(), Box<dyn Error + Send + Sync>> {
        match *self.0.freezing.lock().unwrap() {
            Freezing::EndsEarly | Freezing::IsLate => Err("the budget is over".into()),
            Freezing::Dies => panic!("on purpose"),
            Freezing::Works | Freezing::Fails => Ok(()),
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.0.is_frozen.store(false, Ordering::SeqCst);
    }
}
