//! Selection of the system to start.

use crate::system::{ParseSystemError, System};

/// File in the initramfs of a disk image that contains the system. `tools/image` writes it into the executable together
/// with the kernel.
pub const FILE: &str = "/system-partition";

/// Kernel argument that selects the system of a direct boot.
const ARGUMENT: &str = "granary.system";

/// The system to start cannot be determined.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// A direct boot without the argument.
    #[error("the kernel command line selects no system image; add {ARGUMENT}=UUID")]
    Unnamed,
    #[error("the kernel command line has {ARGUMENT}= more than once; remove all but one")]
    Repeated,
    /// A disk image was started with the argument.
    #[error(
        "the kernel command line has {ARGUMENT}=, but a disk image starts its own system only; remove the argument \
         from the firmware's boot entry or from the SMBIOS strings of the machine"
    )]
    Override,
    /// The disk image selects a system without verification.
    #[error("{FILE} selects a system image without a root hash; build the disk image again")]
    Unverified,
    #[error("{place} contains an invalid system image")]
    Bad {
        /// File or command line with the value.
        place: &'static str,
        source: ParseSystemError,
    },
}

/// The system to start. A disk image starts the one in its initramfs (`embedded`, the content of [`FILE`]), a direct
/// boot the one on the command line. Firmware, boot entries and SMBIOS can append to or replace the command line of a
/// disk image, so it must not select the system of a disk image.
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
            value.parse::<System>().map_err(bad("the kernel command line"))
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
        // A boot entry of the firmware replaced the command line.
        assert_eq!(choose(Some(&own), ""), Ok(own.parse().unwrap()));
    }

    #[test]
    fn the_argument_stops_the_boot_of_a_disk_image() {
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
    fn a_disk_image_must_select_a_verified_system() {
        assert_eq!(choose(Some(IMAGE), ""), Err(ChoiceError::Unverified));
        for wrong in ["", "rubbish", &partition()[1..]] {
            let error = choose(Some(wrong), "").unwrap_err();
            assert!(matches!(error, ChoiceError::Bad { place: FILE, .. }), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_direct_boot_requires_one_argument() {
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
