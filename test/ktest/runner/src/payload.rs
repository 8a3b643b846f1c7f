//! Runs a program that is not a test. Its output goes to users or to a program on the host.

use std::io::{self, IsTerminal as _};

use ktest_init::{Outcome, StepError};

use crate::guest::{Audience, End, order, show};
use crate::machine::Machine;

struct Through;

impl Audience for Through {
    fn stdout(&mut self, text: &str) {
        show(io::stdout(), text);
    }

    fn stderr(&mut self, text: &str) {
        show(io::stderr(), text);
    }
}

/// Runs the program to its end. After a power cut the program runs again, with the same arguments.
pub(crate) fn run(machine: &mut Machine<'_>, tools: &[String], arguments: &[String]) -> Result<End, StepError> {
    let disks = machine.disks();
    let mut boot = 1;
    loop {
        let guest = machine.start()?;
        let mut order = order(arguments.to_owned(), boot, disks.clone(), tools);
        if io::stderr().is_terminal() {
            order.environment.insert("KTEST_TERMINAL".into(), "1".into());
        }
        let end = guest.run(order, None, &mut Through);
        match end {
            End::PowerCut(_) => boot += 1,
            End::Exit(_) => {
                guest.power_off();
                return Ok(end);
            }
            end => return Ok(end),
        }
    }
}

/// Exit status for the end of the program, as in a shell: 128 plus the signal's number if a signal killed it.
pub(crate) fn status(outcome: Outcome) -> u8 {
    let status = match outcome {
        Outcome::Code(code) => code,
        Outcome::Signal(signal) => 128 + signal,
    };
    u8::try_from(status).unwrap_or(u8::MAX)
}
