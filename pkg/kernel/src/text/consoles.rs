/// The consoles other than `/dev/console` in the content of `/sys/class/tty/console/active`, such as `tty0 ttyS0`:
/// names of devices in `/dev`. `/dev/console` is the last one (Documentation/ABI/testing/sysfs-tty).
///
/// The kernel writes its own messages to all consoles, and the output of programs to `/dev/console` to the last one
/// only.
pub fn other_consoles(active: &str) -> impl Iterator<Item = &str> {
    let safe = |name: &&str| name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    active.split_whitespace().rev().skip(1).filter(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_console_is_dev_console() {
        for (active, wanted) in [
            ("tty0 ttyS0\n", &["tty0"][..]),
            ("ttyS0\n", &[]),
            ("", &[]),
            ("tty0 ../x ttyS1 ttyS0\n", &["ttyS1", "tty0"]),
        ] {
            assert_eq!(other_consoles(active).collect::<Vec<_>>(), wanted, "{active:?}");
        }
    }
}
