//! The reason why an attack did not succeed.

use crate::errno::Errno;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The kernel denied the attack's system call.
    Denied(Errno),
    /// A step before or after the attacking call failed. This result proves nothing about the protection.
    Step(&'static str, Errno),
}

impl Failure {
    pub(crate) fn step(name: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Step(name, errno)
    }
}
