//! The file of `--config`.

use crate::error::LaunchError;
use crate::interrupts::Interrupt;
use launch::check_configuration;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use tokio::task::spawn_blocking;

/// Reads and checks the configuration. A pipe, such as `<(COMMAND)` of bash, may have a slow writer or none, so a
/// thread reads the file, and an interrupt ends the wait.
pub(crate) async fn read(
    path: Option<&Path>,
    interrupt: impl Future<Output = Interrupt>,
) -> Result<Option<String>, LaunchError> {
    let Some(path) = path else { return Ok(None) };
    let owned = path.to_owned();
    let text = tokio::select! {
        text = spawn_blocking(move || text(&owned)) => text.map_err(io::Error::from).flatten(),
        end = interrupt => return Err(end.into()),
    };
    let step = format!("read the configuration {}; name a text file that you may read with --config", path.display());
    let text = text.map_err(LaunchError::prepare(step))?;
    let text = text.ok_or_else(|| LaunchError::ConfigKind { path: path.to_owned() })?;
    check_configuration(&text).map_err(|source| LaunchError::Config { path: path.to_owned(), source })?;
    Ok(Some(text))
}

/// Content of the file; `None` if it is neither a regular file nor a pipe.
fn text(path: &Path) -> io::Result<Option<String>> {
    let kind = fs::metadata(path)?.file_type();
    if kind.is_file() || kind.is_fifo() { fs::read_to_string(path).map(Some) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use std::future;
    use std::path::PathBuf;
    use std::thread;
    use tempfile::TempDir;

    const TEXT: &str = r#"{"podProcesses": 128}"#;

    async fn read_file(path: &Path) -> Result<Option<String>, LaunchError> {
        read(Some(path), future::pending()).await
    }

    fn pipe() -> (TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        (directory, path)
    }

    #[tokio::test]
    async fn a_configuration_is_read_from_a_file_or_a_pipe() {
        let (directory, pipe) = pipe();
        let file = directory.path().join("node.json");
        fs::write(&file, TEXT).unwrap();
        assert_eq!(read_file(&file).await.unwrap().as_deref(), Some(TEXT));
        let path = pipe.clone();
        let writer = thread::spawn(move || fs::write(path, TEXT));
        assert_eq!(read_file(&pipe).await.unwrap().as_deref(), Some(TEXT));
        writer.join().unwrap().unwrap();
    }

    /// Regression test: Ctrl-C had no effect.
    #[tokio::test]
    async fn an_interrupt_ends_the_wait_for_a_pipe() {
        let (_directory, path) = pipe();
        let interrupted = read(Some(&path), future::ready(Interrupt::Interrupted)).await;
        assert!(matches!(interrupted, Err(LaunchError::Interrupted)), "{interrupted:?}");
        // Open a writer, so that the reading thread ends. The runtime of the test waits for this thread.
        drop(fs::File::options().write(true).open(&path).unwrap());
    }

    #[tokio::test]
    async fn other_kinds_and_unreadable_files_are_rejected_with_a_remedy() {
        let directory = tempfile::tempdir().unwrap();
        for path in [directory.path(), Path::new("/dev/null")] {
            assert_eq!(
                read_file(path).await.unwrap_err().to_string(),
                format!(
                    "the configuration {} is neither a regular file nor a pipe; write it to a file, and name that with --config",
                    path.display()
                )
            );
        }
        let missing = directory.path().join("missing.json");
        assert_eq!(
            read_file(&missing).await.unwrap_err().to_string(),
            format!(
                "cannot read the configuration {}; name a text file that you may read with --config",
                missing.display()
            )
        );
    }
}
