//! A program in a guest that is not a test. It prints its arguments and ends as the first one says.

use std::env;
use std::process::{ExitCode, abort};
use std::thread;

use ktest_support::{boot, power_cut};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    println!("{arguments:?}");
    eprintln!("boot {} of process {}", boot(), std::process::id());
    match arguments.first().map(String::as_str) {
        Some("abort") => abort(),
        Some("wait") => loop {
            thread::park();
        },
        Some("power") if boot() == 1 => power_cut(),
        _ => ExitCode::from(7),
    }
}
