//! Boots that a power cut interrupted.

use std::sync::OnceLock;

use proptest::prelude::*;

use super::*;

/// The state of a file after a power cut, or on a damaged disk.
#[derive(Clone, Copy, Debug)]
enum Left {
    Whole,
    Absent,
    Empty,
    Half,
    /// The state before the renewal. In a pair, the key may be new and the certificate old.
    Former,
}

impl Left {
    fn of(self, former: &str, text: &str) -> Option<String> {
        Some(match self {
            Self::Absent => return None,
            Self::Whole => text.to_owned(),
            Self::Empty => String::new(),
            Self::Half => text[..text.len() / 2].to_owned(),
            Self::Former => former.to_owned(),
        })
    }
}

fn left() -> impl Strategy<Value = Left> {
    prop_oneof![
        3 => Just(Left::Whole),
        2 => Just(Left::Absent),
        1 => Just(Left::Empty),
        1 => Just(Left::Half),
        2 => Just(Left::Former),
    ]
}

fn renewed() -> &'static (Files, Files) {
    static RENEWED: OnceLock<(Files, Files)> = OnceLock::new();
    RENEWED.get_or_init(|| {
        let (disk, former) = Disk::ensured();
        disk.ensure(LATER).unwrap();
        (former, disk.files())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Cuts any files except the CA's, which exists only with the others, and the key of the Secrets, which is never
    /// replaced. Beside each file may be the rest of an interrupted write.
    #[test]
    fn wherever_the_power_fails_the_next_boot_finishes(
        lefts in prop::collection::vec(left(), 64),
        siblings in prop::collection::vec(any::<bool>(), 64),
    ) {
        let (former, whole) = renewed();
        let disk = Disk::new();
        let pki = &disk.config.paths.pki;
        fs::create_dir(pki).unwrap();
        for (((name, text), left), sibling) in whole.iter().zip(lefts).zip(siblings) {
            let kept = name.starts_with("ca.") || name == "secrets.key";
            let left = if kept { Left::Whole } else { left };
            if let Some(text) = left.of(&former[name], text) {
                fs::write(pki.join(name), text).unwrap();
            }
            if sibling {
                fs::write(pki.join(format!(".{name}.new")), &text[..text.len() / 3]).unwrap();
            }
        }
        disk.ensure(LATER).unwrap();
        let settled = disk.files();
        prop_assert!(settled.keys().filter(|name| !name.starts_with('.')).eq(whole.keys()), "{:?}", settled.keys());
        for file in ["ca.crt", "ca.key", "secrets.key", "encryption.json"] {
            prop_assert_eq!(&settled[file], &whole[file]);
        }
        let store = Store::open(pki).unwrap();
        let ca = Ca::load(&store.read_pair("ca").unwrap().unwrap(), LATER).unwrap();
        let clients = Identity::ALL.map(|identity| identity.wanted("granary"));
        for wanted in clients.into_iter().chain(wanted::of_programs(&disk.config)) {
            if wanted.signer == Signer::FrontProxy {
                prop_assert!(front_proxy::verify(&store, &wanted).unwrap().is_ok());
                continue;
            }
            let pair = store.read_pair(wanted.name).unwrap().unwrap();
            prop_assert_eq!(ca.check(&wanted, &pair, LATER), Ok(()), "{}", wanted.name);
        }
        let signs = rcgen::KeyPair::from_pem(&settled["sa.key"]).unwrap();
        prop_assert_eq!(signs.public_key_pem(), &*settled["sa.pub"]);
        for (name, text) in whole.iter().filter(|(name, _)| name.ends_with(".kubeconfig")) {
            // Kubeconfigs contain paths of files, which differ between the disks.
            prop_assert_eq!(settled[name].lines().count(), text.lines().count(), "{}", name);
            prop_assert!(settled[name].contains(&*pki.to_string_lossy()), "{}", name);
        }
        disk.ensure(LATER).unwrap();
        prop_assert_eq!(disk.changed(&settled), Vec::<String>::new());
    }
}

#[test]
fn a_first_boot_that_was_cut_is_finished_by_the_next() {
    let used = "../etcd/secrets-keys";
    let written = ["ca.key", "ca.crt", "sa.key", "sa.pub", "secrets.key", used, "encryption.json"];
    for cut in 0..=written.len() {
        let (disk, whole) = Disk::ensured();
        for name in whole.keys().map(String::as_str).chain([used]).filter(|name| !written[..cut].contains(name)) {
            fs::remove_file(disk.config.paths.pki.join(name)).unwrap();
        }
        disk.ensure(NOW).unwrap();
        assert!(disk.files().keys().eq(whole.keys()), "{cut}");
        assert_eq!(!disk.changed(&whole).contains(&"ca.crt".to_owned()), cut >= 2, "{cut}");
    }
}
