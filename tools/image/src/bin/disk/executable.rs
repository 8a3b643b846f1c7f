//! The unified kernel image: systemd-stub with kernel, initramfs and command line as sections (UAPI group specification
//! "Unified Kernel Image").

use object::LittleEndian as LE;
use object::pe::{
    IMAGE_SCN_CNT_INITIALIZED_DATA, IMAGE_SCN_MEM_READ, ImageDosHeader, ImageNtHeaders64, ImageSectionHeader,
};
use object::pod::{bytes_of, from_bytes_mut};
use object::read::pe::ImageNtHeaders as _;
use object::{U16, U32};

#[derive(Debug, thiserror::Error)]
pub enum StubError {
    #[error("the stub is not a UEFI executable for x86-64")]
    Format(#[source] object::Error),
    #[error("the headers of the stub are outside of the file")]
    Headers,
    #[error("the stub has no space for {0} more section headers")]
    Full(usize),
    #[error("the executable is larger than 4 GiB")]
    Large,
}

/// Appends the sections to the stub in this order.
pub fn unified(stub: &[u8], sections: &[(&str, &[u8])]) -> Result<Vec<u8>, StubError> {
    let dos = ImageDosHeader::parse(stub).map_err(StubError::Format)?;
    let start = u64::from(dos.nt_headers_offset());
    let mut end = start;
    let (nt, _) = ImageNtHeaders64::parse(stub, &mut end).map_err(StubError::Format)?;
    let present = nt.sections(stub, end).map_err(StubError::Format)?;
    let optional = &nt.optional_header;
    let (page, unit) = (optional.section_alignment.get(LE), optional.file_alignment.get(LE));
    let count = u16::try_from(present.len() + sections.len()).map_err(|_| StubError::Full(sections.len()))?;

    let first = usize::try_from(end).map_err(|_| StubError::Headers)? + size_of_val(present.iter().as_slice());
    let place = first..first + sections.len() * size_of::<ImageSectionHeader>();
    if place.end > optional.size_of_headers.get(LE) as usize {
        return Err(StubError::Full(sections.len()));
    }
    let ends = present.iter().map(|section| section.virtual_address.get(LE).checked_add(section.virtual_size.get(LE)));
    let mut address = ends.max().flatten().ok_or(StubError::Headers)?;

    let mut executable = stub.to_vec();
    let mut headers = Vec::new();
    for (name, content) in sections {
        address = align(address, page)?;
        executable.resize(align(length(executable.len())?, unit)? as usize, 0);
        let header = section(name, address, length(content.len())?, length(executable.len())?, unit)?;
        headers.extend_from_slice(bytes_of(&header));
        executable.extend_from_slice(content);
        address = address.checked_add(length(content.len())?).ok_or(StubError::Large)?;
    }
    executable.resize(align(length(executable.len())?, unit)? as usize, 0);
    executable.get_mut(place).ok_or(StubError::Headers)?.copy_from_slice(&headers);

    let start = usize::try_from(start).map_err(|_| StubError::Headers)?;
    let bytes = executable.get_mut(start..).ok_or(StubError::Headers)?;
    let (nt, _) = from_bytes_mut::<ImageNtHeaders64>(bytes).map_err(|()| StubError::Headers)?;
    nt.file_header.number_of_sections = U16::new(LE, count);
    nt.optional_header.size_of_image = U32::new(LE, align(address, page)?);
    // UEFI does not verify the checksum.
    nt.optional_header.check_sum = U32::new(LE, 0);
    Ok(executable)
}

fn section(name: &str, address: u32, size: u32, at: u32, unit: u32) -> Result<ImageSectionHeader, StubError> {
    let zero = || U32::new(LE, 0);
    let mut label = [0; 8];
    for (place, byte) in label.iter_mut().zip(name.bytes()) {
        *place = byte;
    }
    Ok(ImageSectionHeader {
        name: label,
        virtual_size: U32::new(LE, size),
        virtual_address: U32::new(LE, address),
        size_of_raw_data: U32::new(LE, align(size, unit)?),
        pointer_to_raw_data: U32::new(LE, at),
        pointer_to_relocations: zero(),
        pointer_to_linenumbers: zero(),
        number_of_relocations: U16::new(LE, 0),
        number_of_linenumbers: U16::new(LE, 0),
        characteristics: U32::new(LE, IMAGE_SCN_CNT_INITIALIZED_DATA | IMAGE_SCN_MEM_READ),
    })
}

fn align(value: u32, unit: u32) -> Result<u32, StubError> {
    value.checked_next_multiple_of(unit).ok_or(StubError::Large)
}

fn length(length: usize) -> Result<u32, StubError> {
    u32::try_from(length).map_err(|_| StubError::Large)
}

#[cfg(test)]
mod tests {
    use object::pe::{IMAGE_DOS_SIGNATURE, IMAGE_NT_OPTIONAL_HDR64_MAGIC, IMAGE_NT_SIGNATURE};
    use object::read::pe::PeFile64;
    use object::{Object as _, ObjectSection as _};

    use super::*;

    const HEADERS: u32 = 0x400;
    const CODE: &[u8] = b"code of the stub";

    /// A minimal executable: headers and one section.
    fn stub() -> Vec<u8> {
        let mut stub = vec![0; HEADERS as usize];
        let (dos, rest) = from_bytes_mut::<ImageDosHeader>(&mut stub).unwrap();
        dos.e_magic = U16::new(LE, IMAGE_DOS_SIGNATURE);
        dos.e_lfanew = U32::new(LE, size_of::<ImageDosHeader>() as u32);
        let (nt, rest) = from_bytes_mut::<ImageNtHeaders64>(rest).unwrap();
        nt.signature = U32::new(LE, IMAGE_NT_SIGNATURE);
        nt.file_header.number_of_sections = U16::new(LE, 1);
        nt.file_header.size_of_optional_header =
            U16::new(LE, (size_of::<ImageNtHeaders64>() - 4 - size_of_val(&nt.file_header)) as u16);
        nt.optional_header.magic = U16::new(LE, IMAGE_NT_OPTIONAL_HDR64_MAGIC);
        nt.optional_header.section_alignment = U32::new(LE, 0x1000);
        nt.optional_header.file_alignment = U32::new(LE, 0x200);
        nt.optional_header.size_of_headers = U32::new(LE, HEADERS);
        nt.optional_header.check_sum = U32::new(LE, 7);
        let (text, _) = from_bytes_mut::<ImageSectionHeader>(rest).unwrap();
        *text = section(".text", 0x1000, CODE.len() as u32, HEADERS, 0x200).unwrap();
        stub.extend_from_slice(CODE);
        stub
    }

    #[test]
    fn new_sections_follow_those_of_the_stub() {
        let large = vec![5; 0x1234];
        let bytes = unified(&stub(), &[(".cmdline", b"quiet"), (".linux", &large)]).unwrap();
        let found = PeFile64::parse(&*bytes).unwrap();
        let sections: Vec<_> = found
            .sections()
            .map(|s| (s.name().unwrap().to_owned(), s.address(), s.data().unwrap().to_owned()))
            .collect();
        let wanted = [(".text", 0x1000, CODE), (".cmdline", 0x2000, &b"quiet"[..]), (".linux", 0x3000, &large)];
        assert_eq!(sections, wanted.map(|(name, at, data)| (name.to_owned(), at, data.to_owned())));
        let header = &found.nt_headers().optional_header;
        assert_eq!((header.size_of_image.get(LE), header.check_sum.get(LE)), (0x5000, 0));
        assert_eq!(bytes.len() % 0x200, 0);
    }

    #[test]
    fn a_stub_without_space_for_headers_is_rejected() {
        let many = [(".x", &b""[..]); 20];
        assert!(matches!(unified(&stub(), &many), Err(StubError::Full(20))));
    }

    #[test]
    fn an_invalid_stub_is_rejected() {
        assert!(matches!(unified(b"MZ", &[]), Err(StubError::Format(_))));
        let stub = stub();
        for length in 0..stub.len() {
            let _ = unified(&stub[..length], &[(".linux", b"x")]);
        }
    }
}
