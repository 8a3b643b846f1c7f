//! Interpreter of programs for tests: the instructions and helpers of the assembler, with memory that consists of a few
//! objects.

use std::collections::BTreeMap;

use crate::assembler::{Helper, Instruction, MAP, When, WhenRegisters, code};

const CONTEXT: u64 = 0x1_0000;
const STACK_START: u64 = 0x2_0000;
const STACK_END: u64 = STACK_START + 512;
/// First address of map values. Each value has its own address.
const VALUES: u64 = 0x1000_0000;

/// A kernel with one task, which runs a program.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// IDs of the task's cgroup and the cgroups above it, the root first.
    pub(crate) cgroups: Vec<u64>,
    memory: BTreeMap<u64, Vec<u8>>,
    /// Length of the keys of each map in bytes.
    keys: BTreeMap<i32, usize>,
    /// Addresses of values by map and key.
    values: BTreeMap<(i32, Vec<u8>), u64>,
}

/// Result of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) result: i64,
    /// Number of executed instructions.
    pub(crate) count: usize,
    /// Offsets that the program read in the context.
    pub(crate) context: Vec<u64>,
    /// Addresses of all other reads, except for the stack.
    pub(crate) elsewhere: Vec<u64>,
}

impl Machine {
    /// Creates a machine without objects and maps.
    pub(crate) fn new(cgroups: &[u64]) -> Self {
        Self { cgroups: cgroups.into(), memory: BTreeMap::new(), keys: BTreeMap::new(), values: BTreeMap::new() }
    }

    /// Adds an object at an address.
    pub(crate) fn object(&mut self, address: u64, bytes: Vec<u8>) {
        self.memory.insert(address, bytes);
    }

    /// Adds an empty map.
    pub(crate) fn map(&mut self, map: i32, key_bytes: usize) {
        self.keys.insert(map, key_bytes);
    }

    /// Sets a value of 8 bytes.
    pub(crate) fn set(&mut self, map: i32, key: &[u8], value: u64) {
        assert_eq!(self.keys[&map], key.len(), "a key of map {map}");
        let next = VALUES + 16 * self.values.len() as u64;
        let address = *self.values.entry((map, key.to_vec())).or_insert(next);
        self.memory.insert(address, value.to_le_bytes().to_vec());
    }

    pub(crate) fn get(&self, map: i32, key: &[u8]) -> Option<u64> {
        let address = self.values.get(&(map, key.to_vec()))?;
        Some(u64::from_le_bytes(self.memory[address][..].try_into().unwrap()))
    }

    /// Runs a program with the arguments of its hook.
    pub(crate) fn run(&mut self, program: &[Instruction], arguments: &[u64]) -> Run {
        self.object(CONTEXT, arguments.iter().flat_map(|argument| argument.to_le_bytes()).collect());
        self.object(STACK_START, vec![0xa5; (STACK_END - STACK_START) as usize]);
        let mut registers = [0xdead_dead_dead_dead_u64; 11];
        (registers[1], registers[10]) = (CONTEXT, STACK_END);
        let mut run = Run { result: 0, count: 0, context: Vec::new(), elsewhere: Vec::new() };
        let mut at = 0;
        loop {
            let instruction = program[at];
            let (to, from) = (instruction.to(), instruction.from());
            let immediate = i64::from(instruction.immediate).cast_unsigned();
            let jump = instruction.offset as usize;
            at += 1;
            run.count += 1;
            match instruction.code {
                code::LOAD_HALF | code::LOAD_WORD | code::LOAD_DOUBLE => {
                    let bytes = match instruction.code {
                        code::LOAD_HALF => 2,
                        code::LOAD_WORD => 4,
                        _ => 8,
                    };
                    let address = registers[from].wrapping_add_signed(instruction.offset.into());
                    match address {
                        CONTEXT..STACK_START => run.context.push(address - CONTEXT),
                        STACK_START..STACK_END => {}
                        _ => run.elsewhere.push(address),
                    }
                    registers[to] = number(&self.read(address, bytes));
                }
                code::STORE_WORD | code::STORE_DOUBLE => {
                    let bytes = if instruction.code == code::STORE_WORD { 4 } else { 8 };
                    let address = registers[to].wrapping_add_signed(instruction.offset.into());
                    self.write(address, &registers[from].to_le_bytes()[..bytes]);
                }
                code::ATOMIC_DOUBLE => {
                    assert_eq!(instruction.immediate, 0, "another operation than an addition");
                    let sum = number(&self.read(registers[to], 8)) + registers[from];
                    self.write(registers[to], &sum.to_le_bytes());
                }
                code::MOVE => registers[to] = immediate,
                code::COPY => registers[to] = registers[from],
                code::ADD => registers[to] = registers[to].wrapping_add(immediate),
                code::AND32 => registers[to] = u64::from(registers[to] as u32 & immediate as u32),
                code::XOR32_REGISTER => registers[to] = u64::from(registers[to] as u32 ^ registers[from] as u32),
                code::CONSTANT64 => {
                    let upper = program[at];
                    assert_eq!(upper.code, code::CONTINUED);
                    assert!(from == usize::from(MAP) || from == 0);
                    let [low, high] = [instruction, upper].map(|half| u64::from(half.immediate.cast_unsigned()));
                    registers[to] = high << 32 | low;
                    at += 1;
                }
                code::CALL => self.call(instruction.immediate, &mut registers),
                code::JUMP => at += jump,
                code::EXIT => {
                    run.result = registers[0].cast_signed();
                    return run;
                }
                other => {
                    if is_taken(other, registers[to], registers[from], immediate) {
                        at += jump;
                    }
                }
            }
        }
    }

    fn call(&mut self, helper: i32, registers: &mut [u64; 11]) {
        let [_, first, second, third, ..] = *registers;
        // A program refers to a map by its descriptor.
        let map = first as i32;
        let result = if helper == Helper::MapLookup as i32 {
            let key = self.read(second, self.keys[&map]);
            self.values.get(&(map, key)).copied().unwrap_or(0)
        } else if helper == Helper::MapUpdate as i32 {
            let (key, value) = (self.read(second, self.keys[&map]), number(&self.read(third, 8)));
            self.set(map, &key, value);
            0
        } else if helper == Helper::CurrentCgroupId as i32 {
            *self.cgroups.last().expect("a cgroup")
        } else if helper == Helper::CurrentAncestorCgroupId as i32 {
            self.cgroups.get(first as usize).copied().unwrap_or(0)
        } else if helper == Helper::ProbeReadKernel as i32 {
            match self.find(third, second as usize) {
                Some(bytes) => {
                    let bytes = bytes.to_vec();
                    self.write(first, &bytes);
                    0
                }
                None => (-14_i64).cast_unsigned(),
            }
        } else {
            panic!("helper {helper}")
        };
        registers[..6].fill(0xbad_bad_bad);
        registers[0] = result;
    }

    fn find(&self, address: u64, length: usize) -> Option<&[u8]> {
        let (start, bytes) = self.memory.range(..=address).next_back()?;
        bytes.get((address - start) as usize..)?.get(..length)
    }

    fn read(&self, address: u64, length: usize) -> Vec<u8> {
        self.find(address, length).unwrap_or_else(|| panic!("read of {length} bytes at {address:#x}")).to_vec()
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        let (start, object) = self.memory.range_mut(..=address).next_back().expect("an object");
        object[(address - start) as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn is_taken(code: u8, to: u64, from: u64, immediate: u64) -> bool {
    let (to32, from32, immediate32) = (to as u32, from as u32, immediate as u32);
    [
        (When::Equal32 as u8, to32 == immediate32),
        (When::Above32 as u8, to32 > immediate32),
        (When::AtLeast32 as u8, to32 >= immediate32),
        (When::Differs32 as u8, to32 != immediate32),
        (When::Equal as u8, to == immediate),
        (When::Differs as u8, to != immediate),
        (WhenRegisters::Differ32 as u8, to32 != from32),
        (WhenRegisters::Differ as u8, to != from),
    ]
    .into_iter()
    .find_map(|(known, taken)| (known == code).then_some(taken))
    .unwrap_or_else(|| panic!("instruction {code:#x}"))
}
