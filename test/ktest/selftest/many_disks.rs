//! A guest with more disks than a restored guest has ports for. The guest boots instead.

use std::env;
use std::fs;
use std::path::Path;

#[test]
fn a_guest_with_many_disks_has_them_in_order() {
    let list = env::var("KTEST_DISKS").unwrap();
    let serials: Vec<String> = list
        .split(',')
        .map(|device| {
            let name = Path::new(device).file_name().unwrap();
            fs::read_to_string(Path::new("/sys/block").join(name).join("serial")).unwrap()
        })
        .collect();
    let expected: Vec<String> = (0..8).map(|index| format!("scratch-{index}")).collect();
    assert_eq!(serials, expected);
}
