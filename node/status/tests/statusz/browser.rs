//! The browser process.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::connection::{Connection, Error, Event};

const PATIENCE: Duration = Duration::from_secs(10);

/// Number of lines of the browser's error output in an error.
const LINES: usize = 20;

/// The browser reads requests from descriptor 3 and writes answers to descriptor 4: the pipes that the test connects to
/// its standard input and output.
const WITH_PIPES: &str = r#"exec "$0" "$@" 3<&0 4>&1 </dev/null 1>&2"#;

const OPTIONS: [&str; 7] = [
    "--remote-debugging-pipe",
    // Root cannot use the browser's own sandbox. The build's sandbox has no network, and the test serves the pages.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    // Renders the same glyphs on every machine.
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
];

/// A browser with its libraries and fonts: a tree of `//third_party/debian:chromium`.
#[derive(Clone, Debug)]
pub struct Files(PathBuf);

impl Files {
    /// Reads `BROWSER`, the path of the tree.
    pub fn from_target() -> Result<Self, Error> {
        env::var_os("BROWSER").map(|path| Self(path.into())).ok_or(Error::Missing("BROWSER"))
    }
}

/// A headless browser. The drop ends it.
pub struct Browser {
    connection: Option<Connection>,
    process: Child,
    place: TempDir,
}

impl Browser {
    pub fn start(files: &Files) -> Result<Self, Error> {
        let place = TempDir::with_prefix("browser-").map_err(Error::Start)?;
        // Fontconfig resolves a relative path against its own directory.
        let tree = files.0.canonicalize().map_err(Error::Start)?;
        let mut process = Command::new("sh")
            .args(["-c", WITH_PIPES])
            .arg(tree.join("chromium-headless-shell"))
            .args(OPTIONS)
            .arg(format!("--user-data-dir={}", place.path().display()))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", place.path())
            .env("XDG_CACHE_HOME", place.path())
            .env("LD_LIBRARY_PATH", tree.join("lib"))
            .env("FONTCONFIG_FILE", tree.join("fonts.conf"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(said(place.path())).map_err(Error::Start)?)
            .spawn()
            .map_err(Error::Start)?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let connection = pipes.map(|(requests, answers)| Connection::new(requests, answers)).transpose();
        Ok(Self { connection: connection.map_err(Error::Start)?, process, place })
    }

    pub(crate) fn call(&mut self, session: Option<&str>, request: &str, parameters: Value) -> Result<Value, Error> {
        self.with(|connection| connection.call(session, request, parameters))
    }

    pub(crate) fn wait(&mut self, event: &str) -> Result<(), Error> {
        self.with(|connection| connection.wait(event))
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        self.connection.as_mut().map(|connection| std::mem::take(&mut connection.events)).unwrap_or_default()
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Connection) -> Result<T, Error>) -> Result<T, Error> {
        let gone = || Err(Error::Gone { said: String::new() });
        match self.connection.as_mut().map_or_else(gone, act) {
            Err(Error::Gone { .. }) => Err(Error::Gone { said: last_lines(&said(self.place.path())) }),
            other => other,
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.connection.take());
        let deadline = Instant::now() + PATIENCE;
        // The browser's profile is removed after its end.
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < deadline {
            sleep(Duration::from_millis(10));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn said(place: &Path) -> PathBuf {
    place.join("stderr")
}

fn last_lines(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
