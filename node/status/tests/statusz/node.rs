//! The node's own server on loopback, with fictitious data.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use status::{Audience, Page, Service, Source};
use supervisor::BoxError;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

struct FakeNode(Page);

impl Source for FakeNode {
    fn services(&self) -> Vec<Service> {
        self.0.services.clone()
    }

    fn page(&self) -> Option<Page> {
        Some(self.0.clone())
    }

    fn metrics(&self) -> Result<String, BoxError> {
        Ok("granary_made_up 1\n".to_owned())
    }
}

pub struct FakeServer {
    address: SocketAddr,
    _runtime: Runtime,
}

impl FakeServer {
    pub fn start(page: Page) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        runtime.spawn(async move {
            let audience = Audience::Node { own: Ipv4Addr::LOCALHOST, server: None };
            status::serve(&listener, audience, Arc::new(FakeNode(page))).await
        });
        Ok(Self { address, _runtime: runtime })
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}
