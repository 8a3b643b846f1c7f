//! The node's status page in a browser: a headless Chromium shows it and reports the visible content.
//!
//! ```no_run
//! use browser::{Browser, Files, Screen, FakeServer, Tab};
//! use status::sample;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let served = FakeServer::start(sample::example())?;
//! let mut browser = Browser::start(&Files::from_target()?)?;
//! let mut tab = Tab::open(&mut browser)?;
//! tab.be(Screen::DESK)?;
//! tab.visit(&served.url("/statusz"))?;
//! assert!(tab.look()?.overflow.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! The browser is driven by its own protocol (Chrome DevTools) over two pipes: a few requests in JSON. The crates that
//! wrap all of that protocol bring more code than this one has, and a web socket.
#![forbid(unsafe_code)]

mod browser;
mod colour;
mod connection;
mod look;
mod node;
mod picture;
mod tab;

pub use browser::{Browser, Files};
pub use colour::Colour;
pub use connection::Error;
pub use look::{Header, Look, Text};
pub use node::FakeServer;
pub use picture::Picture;
pub use tab::{Landmark, Media, Scheme, Screen, Tab};
