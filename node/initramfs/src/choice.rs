//! Which system the boot is for.

use crate::system::{BadSystem, System};

/// The file of a disk image's initramfs that names its system. The builder of the image (`tools/disk`) writes it, beside the
/// kernel in one executable.
pub const FILE: &str = "/system-partition";

/// The argument of a direct boot.
const ARGUMENT: &str = "granary.system";

/// Why no system is started.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// A direct boot without the argument.
    #[error("the kernel's command line names no system image: add {ARGUMENT}=UUID")]
    Unnamed,
    /// A direct boot with several.
    #[error("the kernel's command line has {ARGUMENT}= more than once: remove all but one")]
    Repeated,
    /// A disk image, and the argument.
    #[error(
        "the kernel's command line has {ARGUMENT}=, and this disk image starts no other system than its own: remove the argument \
         from the firmware's boot entry or from the SMBIOS strings of the machine"
    )]
    Override,
    /// A disk image that would start a system without verification.
    #[error("{FILE} names a system image that is not verified: build the disk image again")]
    Unverified,
    /// The argument or the file.
    #[error("{place} names a bad system image")]
    Bad {
        /// Where it is written.
        place: &'static str,
        /// What is wrong with it.
        #[source]
        source: BadSystem,
    },
}

/// The system to start: of a disk image the one that its initramfs names (`embedded`, the content of [`FILE`]), else the one
/// of the command line. Firmware, its boot entries and SMBIOS can append arguments to the command line of a disk image, or
/// replace it: none of them chooses the system.
///
/// # Errors
/// [`ChoiceError`].
pub fn choose(embedded: Option<&str>, line: &str) -> Result<System, ChoiceError> {
    let mut arguments = line.split_whitespace().filter(|word| {
        let (key, _) = word.split_once('=').unwrap_or((word, ""));
        key == ARGUMENT
    });
    let (argument, another) = (arguments.next(), arguments.next());
    let bad = |place| move |source| ChoiceError::Bad { place, source };
    match (embedded, argument) {
        (Some(_), Some(_)) => Err(ChoiceError::Override),
        (Some(embedded), None) => match embedded.trim().parse::<System>().map_err(bad(FILE))? {
            System::Image(_) => Err(ChoiceError::Unverified),
            partition @ System::Partition { .. } => Ok(partition),
        },
        (None, None) => Err(ChoiceError::Unnamed),
        (None, Some(_)) if another.is_some() => Err(ChoiceError::Repeated),
        (None, Some(argument)) => {
            let (_, value) = argument.split_once('=').ok_or(ChoiceError::Unnamed)?;
            value.parse::<System>().map_err(bad("the kernel's command line"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: &str = "00112233-4455-6677-8899-aabbccddeeff";

    fn partition() -> String {
        format!("{IMAGE}:30000:{}", "5a".repeat(32))
    }

    #[test]
    fn a_disk_image_starts_its_own_system() {
        let own = partition();
        assert_eq!(choose(Some(&format!("{own}\n")), "quiet panic=10\n"), Ok(own.parse().unwrap()));
        // The boot entry of the firmware has replaced the command line.
        assert_eq!(choose(Some(&own), ""), Ok(own.parse().unwrap()));
    }

    #[test]
    fn no_argument_overrides_the_system_of_a_disk_image() {
        let own = partition();
        for appended in [IMAGE, &own, "", "rubbish"] {
            let line = format!("quiet panic=10 granary.system={appended}");
            assert_eq!(choose(Some(&own), &line), Err(ChoiceError::Override), "{line}");
        }
        assert_eq!(choose(Some(&own), "granary.system"), Err(ChoiceError::Override));
        let text = ChoiceError::Override.to_string();
        assert!(text.contains("granary.system=") && text.contains("SMBIOS"), "{text}");
    }

    #[test]
    fn a_disk_image_starts_nothing_that_is_not_verified() {
        assert_eq!(choose(Some(IMAGE), ""), Err(ChoiceError::Unverified));
        for wrong in ["", "rubbish", &partition()[1..]] {
            let error = choose(Some(wrong), "").unwrap_err();
            assert!(matches!(error, ChoiceError::Bad { place: FILE, .. }), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_direct_boot_has_one_argument() {
        let line = |value: &str| format!("quiet granary.systems=b granary.system={value}\n");
        for value in [IMAGE, &partition()] {
            assert_eq!(choose(None, &line(value)), Ok(value.parse().unwrap()));
        }
        assert_eq!(choose(None, "quiet granary.systems=b"), Err(ChoiceError::Unnamed));
        assert_eq!(choose(None, "granary.system"), Err(ChoiceError::Unnamed));
        assert!(matches!(choose(None, &line("rubbish")), Err(ChoiceError::Bad { .. })));
        for twice in [IMAGE, &partition()] {
            let line = format!("{} granary.system={twice}", line(IMAGE));
            assert_eq!(choose(None, &line), Err(ChoiceError::Repeated));
        }
    }
}
