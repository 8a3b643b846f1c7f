//! The few BPF instructions that the programs consist of (RFC 9669), with labels for jumps.

/// `struct bpf_insn`, include/uapi/linux/bpf.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) code: u8,
    /// Destination register in the lower four bits, source register in the upper four.
    registers: u8,
    pub(crate) offset: i16,
    pub(crate) immediate: i32,
}
const _: () = assert!(size_of::<Instruction>() == 8);

/// Operation codes.
pub(crate) mod code {
    /// Second half of an instruction with a 64-bit constant.
    pub(crate) const CONTINUED: u8 = 0x00;
    pub(crate) const ADD: u8 = 0x07;
    pub(crate) const CONSTANT64: u8 = 0x18;
    pub(crate) const AND32: u8 = 0x54;
    pub(crate) const JUMP: u8 = 0x05;
    pub(crate) const LOAD_WORD: u8 = 0x61;
    pub(crate) const STORE_WORD: u8 = 0x63;
    pub(crate) const LOAD_HALF: u8 = 0x69;
    pub(crate) const LOAD_DOUBLE: u8 = 0x79;
    pub(crate) const STORE_DOUBLE: u8 = 0x7b;
    pub(crate) const CALL: u8 = 0x85;
    pub(crate) const EXIT: u8 = 0x95;
    pub(crate) const XOR32_REGISTER: u8 = 0xac;
    pub(crate) const MOVE: u8 = 0xb7;
    pub(crate) const COPY: u8 = 0xbf;
    pub(crate) const ATOMIC_DOUBLE: u8 = 0xdb;
}

/// `BPF_PSEUDO_MAP_FD`: the constant is the descriptor of a map.
pub(crate) const MAP: u8 = 1;

/// BPF register. R10 points to the end of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Register {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R6 = 6,
    R7 = 7,
    R8 = 8,
    R10 = 10,
}

/// Width of a value in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Half,
    Word,
    Double,
}

/// Condition of a jump that compares a register with a constant. Variants without a width compare all 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum When {
    Equal32 = 0x16,
    Above32 = 0x26,
    AtLeast32 = 0x36,
    Differs32 = 0x56,
    Equal = 0x15,
    Differs = 0x55,
}

/// Condition of a jump that compares two registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum WhenRegisters {
    Differ32 = 0x5e,
    Differ = 0x5d,
}

/// Helper functions of the kernel, include/uapi/linux/bpf.h. A call changes R0 to R5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Helper {
    MapLookup = 1,
    MapUpdate = 2,
    CurrentCgroupId = 80,
    ProbeReadKernel = 113,
    CurrentAncestorCgroupId = 123,
}

/// Target of jumps in a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label(usize);

/// A program under construction.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    code: Vec<Instruction>,
    /// Index of the instruction after each label; `None` until the label is placed.
    labels: Vec<Option<usize>>,
    /// Index and target of each jump.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// Returns a label without a place.
    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places the label before the next instruction.
    pub(crate) fn place(&mut self, label: Label) {
        let here = self.code.len();
        if let Some(place) = self.labels.get_mut(label.0) {
            *place = Some(here);
        }
    }

    /// Reads from memory.
    pub(crate) fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        let code = match width {
            Width::Half => code::LOAD_HALF,
            Width::Word => code::LOAD_WORD,
            Width::Double => code::LOAD_DOUBLE,
        };
        self.emit(code, to, from as u8, offset, 0);
    }

    /// Writes 4 bytes of a register to memory.
    pub(crate) fn store_word(&mut self, to: Register, offset: i16, from: Register) {
        self.emit(code::STORE_WORD, to, from as u8, offset, 0);
    }

    /// Writes all 8 bytes of a register to memory.
    pub(crate) fn store(&mut self, to: Register, offset: i16, from: Register) {
        self.emit(code::STORE_DOUBLE, to, from as u8, offset, 0);
    }

    /// Adds a register to 8 bytes of memory atomically.
    pub(crate) fn add_atomically(&mut self, to: Register, from: Register) {
        // The operation BPF_ADD is 0.
        self.emit(code::ATOMIC_DOUBLE, to, from as u8, 0, 0);
    }

    pub(crate) fn set(&mut self, to: Register, value: i32) {
        self.emit(code::MOVE, to, 0, 0, value);
    }

    pub(crate) fn set64(&mut self, to: Register, value: u64) {
        self.emit(code::CONSTANT64, to, 0, 0, (value as u32).cast_signed());
        self.emit(code::CONTINUED, Register::R0, 0, 0, ((value >> 32) as u32).cast_signed());
    }

    /// Sets a register to the map with this descriptor.
    pub(crate) fn set_map(&mut self, to: Register, descriptor: i32) {
        self.emit(code::CONSTANT64, to, MAP, 0, descriptor);
        self.emit(code::CONTINUED, Register::R0, 0, 0, 0);
    }

    pub(crate) fn copy(&mut self, to: Register, from: Register) {
        self.emit(code::COPY, to, from as u8, 0, 0);
    }

    pub(crate) fn add(&mut self, to: Register, value: i32) {
        self.emit(code::ADD, to, 0, 0, value);
    }

    /// Clears the upper half of the register.
    pub(crate) fn and32(&mut self, to: Register, mask: i32) {
        self.emit(code::AND32, to, 0, 0, mask);
    }

    /// Clears the upper half of `to`.
    pub(crate) fn xor32(&mut self, to: Register, from: Register) {
        self.emit(code::XOR32_REGISTER, to, from as u8, 0, 0);
    }

    pub(crate) fn call(&mut self, helper: Helper) {
        self.emit(code::CALL, Register::R0, 0, 0, helper as i32);
    }

    pub(crate) fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.emit(code::JUMP, Register::R0, 0, 0, 0);
    }

    /// Jumps if the register and the constant meet the condition. A constant above `i32::MAX` needs a condition of 32
    /// bits, because the kernel sign-extends it for the others.
    pub(crate) fn jump_if(&mut self, when: When, register: Register, value: u32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.emit(when as u8, register, 0, 0, value.cast_signed());
    }

    pub(crate) fn jump_if_registers(&mut self, when: WhenRegisters, one: Register, other: Register, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.emit(when as u8, one, other as u8, 0, 0);
    }

    /// Ends the program with R0 as its result.
    pub(crate) fn exit(&mut self) {
        self.emit(code::EXIT, Register::R0, 0, 0, 0);
    }

    /// Returns the program. All jumps lead forwards, so that the program ends.
    ///
    /// # Errors
    /// [`AssembleError`] for a jump whose label has no place, is before the jump, or is too far away.
    pub(crate) fn finish(mut self) -> Result<Vec<Instruction>, AssembleError> {
        for (at, label) in self.jumps {
            let target = self.labels.get(label.0).copied().flatten().ok_or(AssembleError::NoPlace { at })?;
            let distance = target.checked_sub(at + 1).ok_or(AssembleError::Backwards { at })?;
            let distance = i16::try_from(distance).map_err(|_| AssembleError::TooFar { at })?;
            if let Some(instruction) = self.code.get_mut(at) {
                instruction.offset = distance;
            }
        }
        Ok(self.code)
    }

    fn emit(&mut self, code: u8, to: Register, from: u8, offset: i16, immediate: i32) {
        self.code.push(Instruction { code, registers: to as u8 | from << 4, offset, immediate });
    }
}

/// Accessors for the interpreter of the tests. The kernel decodes the bytes itself.
#[cfg(test)]
impl Instruction {
    pub(crate) const fn to(self) -> usize {
        (self.registers & 0xf) as usize
    }

    pub(crate) const fn from(self) -> usize {
        (self.registers >> 4) as usize
    }
}

/// A jump of the program has an invalid target. `at` is the index of the jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum AssembleError {
    /// The label was not placed.
    #[error("the jump at instruction {at} leads to a label without a place")]
    NoPlace { at: usize },
    /// The label is before the jump.
    #[error("the jump at instruction {at} leads backwards")]
    Backwards { at: usize },
    /// The distance does not fit into an instruction.
    #[error("the jump at instruction {at} leads too far")]
    TooFar { at: usize },
}

#[cfg(test)]
mod tests {
    use super::Register::{R0, R1, R2, R7, R10};
    use super::*;

    fn bytes(instruction: Instruction) -> Vec<u8> {
        let Instruction { code, registers, offset, immediate } = instruction;
        [&[code, registers][..], &offset.to_le_bytes(), &immediate.to_le_bytes()].concat()
    }

    /// RFC 9669, sections 3 to 5.
    #[test]
    fn instructions_are_encoded_as_in_the_standard() {
        let mut program = Assembler::default();
        let end = program.label();
        program.load(Width::Double, R2, R1, 8);
        program.load(Width::Half, R2, R1, 2);
        program.store_word(R10, -8, R2);
        program.store(R10, -16, R7);
        program.add_atomically(R0, R1);
        program.set(R0, -1);
        program.set64(R1, 0x1122_3344_5566_7788);
        program.set_map(R1, 9);
        program.copy(R2, R10);
        program.add(R2, -8);
        program.and32(R2, 0xf000);
        program.xor32(R1, R2);
        program.call(Helper::CurrentAncestorCgroupId);
        program.jump_if(When::Above32, R2, 0x401c_5820, end);
        program.jump_if_registers(WhenRegisters::Differ, R0, R1, end);
        program.jump(end);
        program.place(end);
        program.exit();
        let code: Vec<_> = program.finish().unwrap().into_iter().map(bytes).collect();
        let expected: [[u8; 8]; 19] = [
            [0x79, 0x12, 8, 0, 0, 0, 0, 0],
            [0x69, 0x12, 2, 0, 0, 0, 0, 0],
            [0x63, 0x2a, 0xf8, 0xff, 0, 0, 0, 0],
            [0x7b, 0x7a, 0xf0, 0xff, 0, 0, 0, 0],
            [0xdb, 0x10, 0, 0, 0, 0, 0, 0],
            [0xb7, 0x00, 0, 0, 0xff, 0xff, 0xff, 0xff],
            [0x18, 0x01, 0, 0, 0x88, 0x77, 0x66, 0x55],
            [0x00, 0x00, 0, 0, 0x44, 0x33, 0x22, 0x11],
            [0x18, 0x11, 0, 0, 9, 0, 0, 0],
            [0x00, 0x00, 0, 0, 0, 0, 0, 0],
            [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],
            [0x07, 0x02, 0, 0, 0xf8, 0xff, 0xff, 0xff],
            [0x54, 0x02, 0, 0, 0, 0xf0, 0, 0],
            [0xac, 0x21, 0, 0, 0, 0, 0, 0],
            [0x85, 0x00, 0, 0, 123, 0, 0, 0],
            [0x26, 0x02, 2, 0, 0x20, 0x58, 0x1c, 0x40],
            [0x5d, 0x10, 1, 0, 0, 0, 0, 0],
            [0x05, 0x00, 0, 0, 0, 0, 0, 0],
            [0x95, 0x00, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(code, expected);
    }

    #[test]
    fn a_jump_to_a_label_without_a_place_is_an_error() {
        let mut program = Assembler::default();
        let nowhere = program.label();
        program.exit();
        program.jump(nowhere);
        assert_eq!(program.finish(), Err(AssembleError::NoPlace { at: 1 }));
    }

    #[test]
    fn a_jump_backwards_or_to_itself_is_an_error() {
        let mut program = Assembler::default();
        let start = program.label();
        program.place(start);
        program.jump(start);
        assert_eq!(program.finish(), Err(AssembleError::Backwards { at: 0 }));
    }

    #[test]
    fn a_jump_beyond_the_range_of_an_offset_is_an_error() {
        let with_distance = |distance: usize| {
            let mut program = Assembler::default();
            let end = program.label();
            program.jump(end);
            (0..distance).for_each(|_| program.set(R0, 0));
            program.place(end);
            program.exit();
            program.finish()
        };
        assert!(with_distance(0x7fff).is_ok());
        assert_eq!(with_distance(0x8000), Err(AssembleError::TooFar { at: 0 }));
    }
}
