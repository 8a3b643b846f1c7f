//! A pod that makes checks on request.

use crate::pod::PORT;
use crate::{Case, Failure};
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use std::path::Path;
use workload::{
    Check, Checksum, Device, Executed, Fill, FillInodes, Inspect, Paint, Record, Resolved, Scan, Text, Tried, serve,
};

/// A running pod of [`crate::Pod::server`].
#[derive(Clone, Debug)]
pub struct Server {
    case: Case,
    name: String,
}

impl Server {
    pub fn of(case: &Case, name: impl Into<String>) -> Self {
        Self { case: case.clone(), name: name.into() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends a check to the pod through the API server's proxy. `T` is the result of the check.
    pub async fn ask<T: DeserializeOwned>(&self, check: &Check) -> Result<T, Failure> {
        let (namespace, pod) = (self.case.namespace(), &self.name);
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{PORT}/proxy{}", serve::target(check));
        let text = self.case.get(&path).await?;
        match serve::answer(&text) {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(message)) => Err(Failure::Pod { pod: pod.clone(), message }),
            Err(source) => Err(Failure::Report { pod: pod.clone(), message: text, source }),
        }
    }

    pub async fn inspect(&self, path: impl AsRef<Path>) -> Result<Inspect, Failure> {
        self.ask(&Check::Inspect { path: path.as_ref().into() }).await
    }

    pub async fn fill(&self, path: impl AsRef<Path>, keep: bool) -> Result<Fill, Failure> {
        self.ask(&Check::Fill { path: path.as_ref().into(), keep }).await
    }

    pub async fn fill_inodes(&self, path: impl AsRef<Path>, keep: bool) -> Result<FillInodes, Failure> {
        self.ask(&Check::FillInodes { path: path.as_ref().into(), keep }).await
    }

    pub async fn write(&self, path: impl AsRef<Path>, text: &str) -> Result<(), Failure> {
        let written = self.ask::<Text>(&Check::Write { path: path.as_ref().into(), text: text.to_owned() }).await;
        written.map(drop)
    }

    pub async fn read(&self, path: impl AsRef<Path>) -> Result<String, Failure> {
        Ok(self.ask::<Text>(&Check::Read { path: path.as_ref().into() }).await?.text)
    }

    /// Error of [`Check::TryWrite`]; `None` after success.
    pub async fn try_write(&self, path: impl AsRef<Path>) -> Result<Option<String>, Failure> {
        Ok(self.ask::<Tried>(&Check::TryWrite { path: path.as_ref().into() }).await?.errno)
    }

    pub async fn paint(&self, path: impl AsRef<Path>, text: &str) -> Result<Paint, Failure> {
        self.ask(&Check::Paint { path: path.as_ref().into(), text: text.to_owned() }).await
    }

    pub async fn scan(&self, path: impl AsRef<Path>, text: &str) -> Result<Scan, Failure> {
        self.ask(&Check::Scan { path: path.as_ref().into(), text: text.to_owned() }).await
    }

    pub async fn checksum(&self, path: impl AsRef<Path>) -> Result<String, Failure> {
        Ok(self.ask::<Checksum>(&Check::Checksum { path: path.as_ref().into() }).await?.sha256)
    }

    pub async fn execute(&self, path: impl AsRef<Path>) -> Result<Executed, Failure> {
        self.ask(&Check::Execute { path: path.as_ref().into() }).await
    }

    /// Error of [`Check::Unshare`]; `None` after success.
    pub async fn unshare(&self) -> Result<Option<String>, Failure> {
        Ok(self.ask::<Tried>(&Check::Unshare).await?.errno)
    }

    pub async fn device(&self, path: impl AsRef<Path>) -> Result<Device, Failure> {
        self.ask(&Check::Device { path: path.as_ref().into() }).await
    }

    /// Error of [`Check::Direct`]; `None` after success.
    pub async fn direct(&self, path: impl AsRef<Path>) -> Result<Option<String>, Failure> {
        Ok(self.ask::<Tried>(&Check::Direct { path: path.as_ref().into() }).await?.errno)
    }

    pub async fn fetch(&self, address: SocketAddr, target: &str) -> Result<String, Failure> {
        Ok(self.ask::<Text>(&Check::Fetch { address, target: target.to_owned() }).await?.text)
    }

    pub async fn exchange(&self, address: SocketAddr, text: &str) -> Result<String, Failure> {
        Ok(self.ask::<Text>(&Check::Exchange { address, text: text.to_owned() }).await?.text)
    }

    pub async fn resolve(&self, name: &str, record: Record) -> Result<Resolved, Failure> {
        self.ask(&Check::Resolve { name: name.to_owned(), record }).await
    }

    pub async fn remove(self) -> Result<(), Failure> {
        self.case.remove(&self.name).await
    }
}
