//! Runs attacks in a pod: `program VOLUME LIMIT DEVICE LAYER MODULE MARK FOREIGN TURNS` writes MARK to the device, runs
//! all attacks of its user, prints `attacks: done`, and then acts as a tenant for TURNS turns of half a second,
//! searching its device for FOREIGN. MODULE is an unsigned kernel module, which attacks load.
#![no_std]
#![no_main]
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "the entry point, and what the compiler takes for granted")]
mod sys;

use attack::{DONE, File, Target, Tenant, run};
use core::ffi::CStr;
use sys::Arguments;

const OUTPUT: File = File::descriptor(1);

fn main(arguments: &Arguments) -> u8 {
    let words: [Option<&CStr>; 8] = core::array::from_fn(|at| arguments.get(at + 1));
    let [Some(volume), Some(limit), Some(device), Some(layer), Some(module), Some(mark), Some(foreign), Some(turns)] =
        words
    else {
        OUTPUT.print("usage: program VOLUME LIMIT DEVICE LAYER MODULE MARK FOREIGN TURNS");
        return 2;
    };
    let (Some(limit), Some(turns)) = (number(limit), number(turns)) else {
        OUTPUT.print("LIMIT and TURNS are whole numbers");
        return 2;
    };
    let target = Target { volume, limit, device, layer, module };
    let Ok(tenant) = Tenant::new(target, mark, foreign) else {
        OUTPUT.print("cannot write the mark to the device");
        return 1;
    };
    run(&target, |_| true, OUTPUT);
    OUTPUT.print(DONE);
    tenant.run(u32::try_from(turns).unwrap_or(u32::MAX), OUTPUT);
    0
}

fn number(text: &CStr) -> Option<u64> {
    text.to_str().ok()?.parse().ok()
}
