//! Runs a fuzz target: a repeatable, bounded run that starts from the seeds, or a run with the given arguments.
//! Variables of `defs.bzl` configure the program.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

/// Output of an instrumented target. Without instrumentation, no run would find anything.
const INSTRUMENTED: &str = "inline 8-bit counters";

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0} is not set, start this by its Bazel target")]
    Missing(&'static str),
    #[error("cannot {step} {}", path.display())]
    File { step: &'static str, path: PathBuf, source: io::Error },
    #[error("the target was built without coverage instrumentation")]
    NotInstrumented,
    #[error("the target failed ({0})")]
    Failed(ExitStatus),
    #[error("the bug that the target has was not found in {0} runs")]
    NotFound(String),
    #[error("the target failed in another way than with {0:?}")]
    Different(String),
    #[error("the input that was found does not fail a second time")]
    NotRepeated,
}

struct Config {
    label: String,
    program: PathBuf,
    directory: String,
    seeds: PathBuf,
    runs: String,
    /// Message that the target prints when its bug is found, for a target with a deliberate bug.
    finds: Option<String>,
}

impl Config {
    fn from_env() -> Result<Self, Error> {
        let text = |name| env::var(name).map_err(|_| Error::Missing(name));
        let path = |name| absolute(Path::new(&text(name)?));
        Ok(Self {
            label: text("FUZZ_LABEL")?,
            program: path("FUZZ_PROGRAM")?,
            directory: text("FUZZ_SEEDS")?,
            seeds: path("FUZZ_SEEDS")?,
            runs: text("FUZZ_RUNS")?,
            finds: text("FUZZ_FINDS").ok().filter(|finds| !finds.is_empty()),
        })
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", causes::lines(&error));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode, Error> {
    let config = Config::from_env()?;
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    if arguments.is_empty() { bounded(&config).map(|()| ExitCode::SUCCESS) } else { free(&config, &arguments) }
}

/// Runs a fixed number of inputs that start from the seeds. The inputs are the same in each run.
fn bounded(config: &Config) -> Result<(), Error> {
    let temporary = env::var_os("TEST_TMPDIR").map_or_else(env::temp_dir, PathBuf::from);
    let corpus = temporary.join(format!("corpus-{}", std::process::id()));
    let outputs = env::var_os("TEST_UNDECLARED_OUTPUTS_DIR").map_or(temporary, PathBuf::from);
    make(&corpus)?;
    let mut command = Command::new(&config.program);
    command.args(["-seed=1", "-print_final_stats=1", "-timeout=10", "-rss_limit_mb=1024"]);
    command.arg(format!("-runs={}", config.runs));
    command.arg(flag("-artifact_prefix=", &outputs.join("")));
    command.args([&corpus, &config.seeds]);
    let (status, said) = observe(&mut command)?;
    remove(&corpus)?;

    if !said.contains(INSTRUMENTED) {
        return Err(Error::NotInstrumented);
    }
    match (&config.finds, status.success()) {
        (None, true) => Ok(()),
        (None, false) => {
            if let Some(input) = kept(&said) {
                explain(config, &input);
            }
            Err(Error::Failed(status))
        }
        (Some(_), true) => Err(Error::NotFound(config.runs.clone())),
        (Some(finds), false) if !said.contains(finds) => Err(Error::Different(finds.clone())),
        (Some(finds), false) => {
            let input = kept(&said).ok_or(Error::NotRepeated)?;
            let (status, said) = observe(Command::new(&config.program).arg(&input))?;
            remove(&input)?;
            if status.success() || !said.contains(finds) { Err(Error::NotRepeated) } else { Ok(()) }
        }
    }
}

/// Runs the target with arguments: flags of libFuzzer, files to run once, or directories of inputs. Without files and
/// directories, the run starts from the seeds and keeps new inputs.
fn free(config: &Config, arguments: &[OsString]) -> Result<ExitCode, Error> {
    let mut command = Command::new(&config.program);
    if let Some(directory) = env::var_os("BUILD_WORKING_DIRECTORY") {
        command.current_dir(directory);
    }
    if arguments.iter().all(|argument| argument.as_encoded_bytes().starts_with(b"-")) {
        let name = config.label.rsplit(':').next().unwrap_or_default();
        let corpus = env::temp_dir().join(format!("fuzz-{name}"));
        make(&corpus)?;
        println!("corpus: {}", corpus.display());
        command.args([&corpus, &config.seeds]);
    }
    command.args(arguments);
    let status = command.status().map_err(failed("start", &config.program))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a program, repeats its standard error, and returns it with the exit status.
fn observe(command: &mut Command) -> Result<(ExitStatus, String), Error> {
    let program = PathBuf::from(command.get_program());
    let mut child = command.stderr(Stdio::piped()).spawn().map_err(failed("start", &program))?;
    let mut said = String::new();
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).split(b'\n') {
            let line = line.map_err(failed("read from", &program))?;
            let line = String::from_utf8_lossy(&line);
            eprintln!("{line}");
            said.push_str(&line);
            said.push('\n');
        }
    }
    let status = child.wait().map_err(failed("wait for", &program))?;
    Ok((status, said))
}

fn kept(said: &str) -> Option<PathBuf> {
    said.lines().find_map(|line| line.split_once("Test unit written to ")).map(|(_, path)| PathBuf::from(path))
}

fn explain(config: &Config, input: &Path) {
    let Config { label, directory, .. } = config;
    if let Ok(bytes) = fs::read(input) {
        eprintln!("\ninput of {} bytes: b\"{}\"", bytes.len(), bytes.escape_ascii());
    }
    let file = input.display();
    eprintln!("kept as:       {file}");
    if env::var_os("TEST_UNDECLARED_OUTPUTS_DIR").is_some() {
        let place = label.trim_start_matches(['@', '/']).replace(':', "/");
        eprintln!("               (after the test in bazel-testlogs/{place}/test.outputs)");
    }
    eprintln!("to repeat:     bazel run {label} -- FILE");
    eprintln!("to remember:   fix it, and copy FILE to {directory}");
    let _ = io::stderr().flush();
}

fn flag(name: &str, path: &Path) -> OsString {
    let mut flag = OsString::from(name);
    flag.push(path);
    flag
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(failed("find", path))
}

fn make(directory: &Path) -> Result<(), Error> {
    fs::create_dir_all(directory).map_err(failed("make", directory))
}

fn remove(path: &Path) -> Result<(), Error> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(failed("remove", path))
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { step, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_that_failed_is_where_libfuzzer_says() {
        let said = "SUMMARY: libFuzzer: deadly signal\n\
            artifact_prefix='/out/'; Test unit written to /out/crash-da39a3ee\nBase64: TkFS\n";
        assert_eq!(kept(said), Some(PathBuf::from("/out/crash-da39a3ee")));
        assert_eq!(kept("#2 INITED cov: 9 ft: 9 corp: 1/5b\n"), None);
    }

    #[test]
    fn all_that_a_program_says_is_returned_with_its_end() {
        let (status, said) = observe(Command::new("sh").args(["-c", "echo one >&2; echo two >&2; exit 77"])).unwrap();
        assert_eq!((status.code(), said.as_str()), (Some(77), "one\ntwo\n"));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = observe(&mut Command::new("/absent")).unwrap_err();
        assert_eq!(error.to_string(), "cannot start /absent");
    }
}
