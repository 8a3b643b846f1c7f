//! One attack, and the code that runs attacks.

use core::fmt::{self, Write as _};

use crate::expected::Expected;
use crate::failure::Failure;
use crate::sys::{self, File, Page};
use crate::table::ATTACKS;
use crate::target::Target;
use crate::text::Text;

#[derive(Debug)]
pub struct Attack {
    pub name: &'static str,
    pub by: By,
    /// Result on a kernel without the protections, verified by the control test.
    pub unprotected: Expected,
    pub protected: Expected,
    pub(crate) call: Call,
}

pub(crate) type Call = fn(&Target<'_>, &mut Page) -> Result<(), Failure>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Uid 1000 without capabilities, and root.
    Anyone,
    /// Uid 1000 without capabilities.
    User,
    /// Root with `CAP_SYS_ADMIN`, `CAP_SYS_BOOT`, `CAP_SYS_MODULE` and `CAP_SYS_RAWIO`. Without these capabilities, the
    /// kernel's own checks or seccomp deny the call before the protection does.
    Root,
}

impl By {
    pub const fn includes(self, uid: usize) -> bool {
        match self {
            Self::Anyone => true,
            Self::User => uid != 0,
            Self::Root => uid == 0,
        }
    }
}

struct Outcome(Result<(), Failure>);

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Ok(()) => f.write_str("succeeded"),
            Err(Failure::Denied(errno)) => write!(f, "denied {errno}"),
            Err(Failure::Step(step, errno)) => write!(f, "unexpected: {step}: {errno}"),
        }
    }
}

/// Runs the selected attacks of this process's user, each in a child, and prints `NAME: succeeded`, `denied EPERM` or
/// `unexpected: ...` for each.
pub fn run(target: &Target<'_>, selected: impl Fn(&Attack) -> bool, output: File) {
    let uid = sys::user();
    for attack in ATTACKS.iter().filter(|attack| attack.by.includes(uid) && selected(attack)) {
        match sys::fork() {
            Ok(None) => {
                let outcome = Page::new().map_err(Failure::step("map a page"));
                let outcome = outcome.and_then(|mut page| (attack.call)(target, &mut page));
                report(output, attack, &Outcome(outcome));
                sys::exit();
            }
            Ok(Some(child)) => match sys::wait(child) {
                Ok(0) => {}
                Ok(signal) => report(output, attack, &format_args!("unexpected: killed by signal {signal}")),
                Err(errno) => report(output, attack, &Outcome(Err(Failure::Step("wait for the child", errno)))),
            },
            Err(errno) => report(output, attack, &Outcome(Err(Failure::Step("fork", errno)))),
        }
    }
}

fn report(output: File, attack: &Attack, outcome: &dyn fmt::Display) {
    let mut line = Text::<256>::new();
    // A truncated line never matches the expected text, so the error can be ignored.
    _ = writeln!(line, "{}: {outcome}", attack.name);
    _ = sys::write(output, line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;

    #[test]
    fn a_failed_step_is_not_a_denial() {
        assert_eq!(Outcome(Err(Failure::Denied(Errno::EPERM))).to_string(), "denied EPERM");
        let step = Outcome(Err(Failure::Step("open the device", Errno::EPERM))).to_string();
        assert_eq!(step, "unexpected: open the device: EPERM");
        assert!(!Expected::Fails(&[Errno::EPERM]).is(&step));
    }
}
