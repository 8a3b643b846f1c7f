//! Network namespaces that act as hosts.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use tokio::runtime;
use tokio::task::JoinSet;

type Work = Box<dyn FnOnce() + Send>;

/// A thread in its own network namespace, which acts as a host. The thread and the namespace end when the value is
/// dropped.
#[derive(Debug)]
pub struct Namespace {
    work: Sender<Work>,
    file: File,
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

impl Namespace {
    /// A host with nothing but a loopback interface, which is down.
    pub fn new() -> Self {
        let (work, todo) = channel::<Work>();
        let (ready, opened) = channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("root may make a network namespace");
            ready.send(File::open("/proc/thread-self/ns/net").expect("/proc")).expect("the creator waits");
            todo.into_iter().for_each(|work| work());
        });
        Self { work, file: opened.recv().expect("the thread is there") }
    }

    /// Runs a function on this host. Sockets that it opens and programs that it starts stay in the host's network.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let work = move || drop(done.send(catch_unwind(AssertUnwindSafe(work))));
        self.work.send(Box::new(work)).expect("the thread is there");
        result.recv().expect("an answer").unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// As [`Self::run`], for an async function. The runtime has one thread, so all tasks run on this host.
    pub fn block_on<T: Send + 'static>(&self, work: impl AsyncFnOnce() -> T + Send + 'static) -> T {
        self.run(|| {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(work())
        })
    }

    /// As [`Self::block_on`], with an rtnetlink connection for links, addresses and routes.
    pub fn netlink<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(rtnetlink::Handle) -> Result<T, rtnetlink::Error> + Send + 'static,
    ) -> T {
        self.block_on(async || {
            let (connection, handle, _) = rtnetlink::new_connection().expect("a socket");
            let mut driver = JoinSet::new();
            driver.spawn(connection);
            work(handle).await.unwrap_or_else(|error| panic!("netlink: {error}"))
        })
    }

    /// Descriptor of the network namespace, to move interfaces into it (`IFLA_NET_NS_FD`).
    pub fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }
}
