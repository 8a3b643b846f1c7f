//! The guest's serial console: its last lines, and the stages before announcements.

use crate::event::Event;
use crate::options::Boot;
use cluster::announcement::StageState;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

const LINES: usize = 25;

#[derive(Debug)]
pub struct Console {
    path: PathBuf,
    lines: Vec<String>,
}

impl Console {
    pub(crate) fn read(path: &Path) -> Self {
        let lines = match qemu::console_tail(path, LINES) {
            Ok(lines) => lines.iter().map(|line| printable(line)).collect(),
            Err(error) => vec![format!("{} cannot be read: {error}", path.display())],
        };
        Self { path: path.into(), lines }
    }
}

/// Removes the control characters of the firmware and of programs, which would also clear the terminal of the user.
fn printable(line: &str) -> String {
    line.replace('\t', " ").chars().filter(|character| !character.is_control()).collect()
}

impl fmt::Display for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "end of {}:", self.path.display())?;
        self.lines.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

/// A text of the console that marks the end of a stage.
#[derive(Debug, PartialEq, Eq)]
struct Mark {
    text: &'static str,
    ends: &'static str,
}

/// Last line of EDK II's boot manager.
const FIRMWARE: Mark = Mark { text: "BdsDxe: starting Boot", ends: "firmware" };
/// First line of node/initramfs. The kernel itself is quiet.
const KERNEL: Mark = Mark { text: "initramfs: started", ends: "kernel" };

/// Bytes of the console that are searched. Both marks are within the first lines.
const WINDOW: u64 = 64 << 10;

/// The stages before the first announcement, read from the console.
#[derive(Debug)]
pub(crate) struct EarlyStages {
    console: PathBuf,
    left: &'static [Mark],
}

impl EarlyStages {
    /// Starts the first stage, and returns its event.
    pub(crate) fn begin(boot: &Boot, console: &Path) -> (Self, Event) {
        let left: &[Mark] = match boot {
            Boot::Firmware(_) => &[FIRMWARE, KERNEL],
            Boot::Kernel => &[KERNEL],
        };
        (Self { console: console.into(), left }, Event::stage(left[0].ends, StageState::Started))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    pub(crate) fn read(&mut self) -> io::Result<Vec<Event>> {
        let mut head = Vec::new();
        File::open(&self.console)?.take(WINDOW).read_to_end(&mut head)?;
        Ok(self.found_in(&String::from_utf8_lossy(&head)))
    }

    fn found_in(&mut self, text: &str) -> Vec<Event> {
        let shown = self.left.iter().take_while(|mark| text.contains(mark.text)).count();
        self.pass(shown)
    }

    /// Returns the events of all remaining stages, when the first announcement arrives.
    pub(crate) fn finish(&mut self) -> Vec<Event> {
        self.pass(self.left.len())
    }

    fn pass(&mut self, count: usize) -> Vec<Event> {
        let (passed, left) = self.left.split_at(count);
        self.left = left;
        let mut events = Vec::new();
        for (index, mark) in passed.iter().enumerate() {
            events.push(Event::stage(mark.ends, StageState::Ready));
            if let Some(next) = passed.get(index + 1).or(left.first()) {
                events.push(Event::stage(next.ends, StageState::Started));
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use StageState::{Ready, Started};
    use proptest::prelude::*;

    /// Output of OVMF (2026) and of the node's initramfs.
    const LINES: [&str; 3] = [
        "\x1b[2J\x1b[001;001HBdsDxe: loading Boot0002 \"UEFI Misc Device\" from PciRoot(0x0)/Pci(0x3,0x0)\r\n",
        "BdsDxe: starting Boot0002 \"UEFI Misc Device\" from PciRoot(0x0)/Pci(0x3,0x0)\r\n",
        "initramfs: started 1.346 s after the kernel\r\n",
    ];

    fn firmware() -> EarlyStages {
        let (early, first) = EarlyStages::begin(&Boot::Firmware("disk.img".into()), Path::new("console.log"));
        assert_eq!(first, Event::stage("firmware", Started));
        early
    }

    fn all() -> Vec<Event> {
        vec![Event::stage("firmware", Ready), Event::stage("kernel", Started), Event::stage("kernel", Ready)]
    }

    #[test]
    fn a_stage_ends_when_the_console_shows_its_mark() {
        let mut early = firmware();
        assert_eq!(early.found_in(""), []);
        assert_eq!(early.found_in(LINES[0]), []);
        assert_eq!(early.found_in(&LINES[..2].concat()), all()[..2]);
        assert_eq!(early.found_in(&LINES[..2].concat()), []);
        assert_eq!(early.found_in(&LINES.concat()), all()[2..]);
        assert!(early.is_over());
    }

    #[test]
    fn remaining_stages_end_with_the_first_announcement() {
        assert_eq!(firmware().finish(), all());
        let (mut direct, first) = EarlyStages::begin(&Boot::Kernel, Path::new("console.log"));
        assert_eq!(first, Event::stage("kernel", Started));
        assert_eq!(direct.finish(), [Event::stage("kernel", Ready)]);
        assert_eq!(direct.finish(), []);
    }

    /// Regression test: the firmware's last lines cleared the terminal, and the error before them was lost.
    #[test]
    fn the_end_of_the_console_does_not_control_the_terminal() {
        let log = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(log.path(), format!("{}a\tb\x07\u{9b}2J\n", LINES.concat())).unwrap();
        let shown = Console::read(log.path()).to_string();
        assert!(shown.lines().all(|line| !line.contains(|character: char| character.is_control())), "{shown:?}");
        assert!(
            shown.contains("\n  [2J[001;001HBdsDxe: loading Boot0002 ") && shown.ends_with("\n  a b2J"),
            "{shown:?}"
        );
    }

    proptest! {
        #[test]
        fn events_do_not_depend_on_the_sizes_of_reads(cuts: Vec<prop::sample::Index>) {
            let text = LINES.concat();
            let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            ends.sort_unstable();
            ends.push(text.len());
            let mut early = firmware();
            let events: Vec<Event> = ends.iter().flat_map(|end| early.found_in(&text[..*end])).collect();
            prop_assert_eq!(events, all());
        }

        #[test]
        fn any_text_is_accepted(text: String) {
            firmware().found_in(&text);
        }
    }
}
