//! A program that is not a test; people or a program on the host read its output.

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

/// Runs it to its end. After a power cut it is run again, with the same arguments.
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

/// The status that stands for the program's, as a shell's does: 128 and the number of a signal.
pub(crate) fn status(outcome: Outcome) -> u8 {
    let status = match outcome {
        Outcome::Code(code) => code,
        Outcome::Signal(signal) => 128 + signal,
    };
    u8::try_from(status).unwrap_or(u8::MAX)
}
