//! Single files.

use crate::CheckError;
use crate::finding::{Executed, Text};
use crate::{Check, Request, content, fill};
use sha2::{Digest, Sha256};
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes the file and syncs it and its directory, which is created if it is missing. On a block device, writes the
/// beginning.
pub(crate) fn write(path: &Path, text: &str) -> Result<Text, CheckError> {
    if path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device()) {
        content::begin(path, text)?;
        return Ok(Text { text: text.to_owned() });
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(CheckError::of("create", directory))?;
    }
    let mut file = File::create(path).map_err(CheckError::of("create", path))?;
    file.write_all(text.as_bytes()).map_err(CheckError::of("write", path))?;
    file.sync_all().map_err(CheckError::of("sync", path))?;
    if let Some(directory) = path.parent() {
        File::open(directory).and_then(|open| open.sync_all()).map_err(CheckError::of("sync", directory))?;
    }
    Ok(Text { text: text.to_owned() })
}

pub(crate) fn read(path: &Path) -> Result<Text, CheckError> {
    Ok(Text { text: content::beginning(path, Check::READ_LIMIT)? })
}

pub(crate) fn checksum(path: &Path) -> Result<String, CheckError> {
    let mut digest = Sha256::new();
    File::open(path).and_then(|mut file| io::copy(&mut file, &mut digest)).map_err(CheckError::of("read", path))?;
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

pub(crate) fn execute(directory: &Path) -> Result<Executed, CheckError> {
    let own = std::env::current_exe().map_err(CheckError::of("find", Path::new("this program")))?;
    let copy = directory.join("program");
    fs::copy(&own, &copy).map_err(CheckError::of("copy this program to", &copy))?;
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).map_err(CheckError::of("change the mode of", &copy))?;
    let request = Request { check: Check::Inspect { path: directory.to_path_buf() }, report: false };
    let executed = match Command::new(&copy).args(request.arguments()).stdout(Stdio::null()).status() {
        Ok(status) => Executed { status: status.code(), errno: None },
        Err(error) => Executed { status: None, errno: Some(fill::name(&error)) },
    };
    fs::remove_file(&copy).map_err(CheckError::of("remove", &copy))?;
    Ok(executed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("note");
        write(&path, "a longer text").unwrap();
        write(&path, "hello").unwrap();
        assert_eq!(read(&path).unwrap().text, "hello");
        assert_eq!(checksum(&path).unwrap(), "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    }

    #[test]
    fn a_missing_directory_is_created() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("missing/note");
        write(&path, "hello").unwrap();
        assert_eq!(read(&path).unwrap().text, "hello");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read(Path::new("/nowhere/note")).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /nowhere/note");
    }
}
