//! `/bin/sh` of the image busybox. It executes the shell of busybox, whose messages upstream's tests compare, or bash if the
//! name of a variable is not an identifier: tests set variables such as `data-1`, which busybox drops before version 1.38.

use std::env;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_else(|| "sh".into());
    let shell = if env::vars_os().all(|(name, _)| is_identifier(&name)) { "busybox" } else { "bash" };
    // Both shells are in the directory of this program.
    let path = env::current_exe().map_or_else(|_| PathBuf::from("/bin").join(shell), |own| own.with_file_name(shell));
    // Busybox selects its command by this name.
    let error = Command::new(&path).arg0(&name).args(arguments).exec();
    eprintln!("cannot execute {}: {error}", path.display());
    ExitCode::from(127)
}

fn is_identifier(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    !bytes.first().is_some_and(u8::is_ascii_digit)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_has_letters_digits_and_underscores() {
        for (name, is) in [("data_1", true), ("_", true), ("data-1", false), ("p.data", false), ("1data", false)] {
            assert_eq!(is_identifier(OsStr::new(name)), is, "{name}");
        }
    }
}
