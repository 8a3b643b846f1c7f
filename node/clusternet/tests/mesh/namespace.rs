//! Network namespaces: two hosts in one kernel.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use nix::sched::{CloneFlags, unshare};

type Work = Box<dyn FnOnce() + Send>;

/// A host: a thread with a network of its own. Dropped, it ends, and so does its network.
pub struct Namespace {
    work: Sender<Work>,
    file: File,
}

impl Namespace {
    pub fn new() -> Self {
        let (work, todo) = channel::<Work>();
        let (ready, opened) = channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("root may make a network namespace");
            ready.send(File::open("/proc/thread-self/ns/net").expect("/proc")).expect("somebody waits");
            todo.into_iter().for_each(|work| work());
        });
        Self { work, file: opened.recv().expect("the thread is there") }
    }

    /// Does something on this host. Sockets that it opens stay there, whoever uses them.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let work = move || drop(done.send(catch_unwind(AssertUnwindSafe(work))));
        self.work.send(Box::new(work)).expect("the thread is there");
        result.recv().expect("an answer").unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// The same with a connection for links, addresses and routes.
    pub fn netlink<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(rtnetlink::Handle) -> Result<T, rtnetlink::Error> + Send + 'static,
    ) -> T {
        self.run(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (connection, handle, _) = rtnetlink::new_connection().unwrap();
                let mut driver = tokio::task::JoinSet::new();
                driver.spawn(connection);
                work(handle).await.unwrap()
            })
        })
    }

    pub fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }
}
