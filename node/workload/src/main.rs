//! Runs a check and prints the finding as a JSON object.
//!
//! Exit status 0: success. 1: the check failed. 2: wrong usage.
#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;
use workload::Request;

fn main() -> ExitCode {
    let request = match Request::parse(std::env::args().skip(1).collect()) {
        Ok(request) => request,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    match run(&request) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = format!("error: {}", causes::lines(&*error));
            eprintln!("{text}");
            if request.report {
                // Ignore errors of the report file: the error was printed to standard error.
                _ = std::fs::write(Request::REPORT_FILE, text);
            }
            ExitCode::FAILURE
        }
    }
}

fn run(request: &Request) -> Result<(), Box<dyn Error>> {
    let finding = serde_json::to_string(&workload::run(&request.check)?)?;
    println!("{finding}");
    if request.report {
        std::fs::write(Request::REPORT_FILE, finding)?;
    }
    Ok(())
}
