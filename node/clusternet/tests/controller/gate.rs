//! A client whose connection can be cut.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Request;
use kube::Client;
use kube::client::Body;
use tower::service_fn;

#[derive(Clone, Default)]
pub struct Gate(Arc<AtomicBool>);

impl Gate {
    pub fn close(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub fn open(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// The client behind the gate. Existing watches continue when the gate closes.
    pub fn client(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let gate = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let (client, closed) = (client.clone(), gate.0.load(Ordering::SeqCst));
            async move {
                if closed {
                    let cut = io::Error::from(io::ErrorKind::ConnectionRefused);
                    return Err(kube::Error::Service(cut.into()));
                }
                client.send(request).await
            }
        });
        Client::new(service, namespace)
    }
}
