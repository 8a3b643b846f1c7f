//! An Ethernet segment with several VMs in it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Command;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::arguments;
use crate::network::{Forward, Mac};
use crate::process::{Exit, Process};
use crate::program::Program;
use crate::qmp::Qmp;
use crate::vm::{self, StartError};

/// Size of the buffer in bytes. The longest frame that QEMU forwards is shorter.
const FRAME: usize = 68 << 10;
/// Time for which a frame waits for its receiver. A frame that the receiver does not read in this time is lost, as on
/// any wire.
const PATIENCE: Duration = Duration::from_millis(100);

/// An Ethernet segment for VMs with [`Link::Wire`](crate::Link::Wire), with user networking for all of them: network
/// 10.0.2.0/24, gateway 10.0.2.2, name server 10.0.2.3. The first VM to ask by DHCP gets 10.0.2.15; an address stays
/// with its [`Mac`].
///
/// A frame for one VM reaches that VM only: with a hub, QEMU's user networking would answer every IP packet in the name
/// of its receiver. Dropping the segment ends user networking; VMs reach each other as long as their [`Plug`]s exist.
#[derive(Debug)]
pub struct Segment {
    switch: Arc<Switch>,
    /// User networking: a QEMU that has no machine.
    gateway: Process,
    /// Control connection of the gateway, open as long as the gateway runs.
    _control: Qmp,
    _plug: Plug,
}

/// Connection of a VM to a [`Segment`]. Dropping the plug ends the connection.
#[derive(Debug)]
pub struct Plug {
    cable: Cable,
    thread: Option<JoinHandle<()>>,
}

/// Handle to interrupt the connection of a VM to a [`Segment`], as beyond a switch: the link of the machine stays up,
/// but frames from and to it are lost.
#[derive(Clone, Debug)]
pub struct Cable {
    switch: Arc<Switch>,
    end: End,
    wire: Arc<UnixDatagram>,
}

/// An end of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Gateway,
    Vm(Mac),
}

#[derive(Debug, Default)]
struct Switch {
    wires: RwLock<BTreeMap<End, Wire>>,
}

#[derive(Debug)]
struct Wire {
    socket: Arc<UnixDatagram>,
    connected: bool,
}

impl Segment {
    /// Starts user networking; VMs are connected later.
    ///
    /// # Errors
    /// [`StartError`]: nothing runs. [`StartError::Ended`] if a port of the host is taken.
    pub fn start(program: &Program, forwards: &[Forward]) -> Result<Self, StartError> {
        let (qmp, their_qmp) = UnixStream::pair().map_err(StartError::Prepare)?;
        let (wire, their_wire) = UnixDatagram::pair().map_err(StartError::Prepare)?;
        let mut command = Command::new(program.path());
        command.args(arguments::gateway(forwards, their_qmp.as_raw_fd(), their_wire.as_raw_fd()));
        let (gateway, control) = vm::open(command, vec![their_qmp.into(), their_wire.into()], qmp)?;
        let switch = Arc::new(Switch::default());
        let plug = Plug::new(&switch, End::Gateway, wire).map_err(StartError::Prepare)?;
        Ok(Self { switch, gateway, _control: control, _plug: plug })
    }

    /// Connects the VM with this address, by the wire of [`Vm::take_wire`](crate::Vm::take_wire), in place of an
    /// earlier VM with the same address.
    pub fn connect(&self, mac: Mac, wire: UnixDatagram) -> io::Result<Plug> {
        Plug::new(&self.switch, End::Vm(mac), wire)
    }

    /// Exit of user networking, if it has ended.
    pub fn exit(&self) -> Option<Exit> {
        self.gateway.exit()
    }
}

impl Plug {
    fn new(switch: &Arc<Switch>, end: End, wire: UnixDatagram) -> io::Result<Self> {
        wire.set_write_timeout(Some(PATIENCE))?;
        let wire = Arc::new(wire);
        let (passing, from) = (Arc::clone(switch), Arc::clone(&wire));
        let thread = thread::Builder::new().name("wire".into()).spawn(move || passing.pass_all(end, &from))?;
        switch.put(end, Wire { socket: Arc::clone(&wire), connected: true });
        Ok(Self { cable: Cable { switch: Arc::clone(switch), end, wire }, thread: Some(thread) })
    }

    /// The machine's cable.
    pub fn cable(&self) -> Cable {
        self.cable.clone()
    }
}

impl Cable {
    /// Connects the machine again. No effect if its [`Plug`] was dropped.
    pub fn put_in(&self) {
        self.switch.connect(self.end, &self.wire, true);
    }

    /// Disconnects the machine. No effect if its [`Plug`] was dropped.
    pub fn pull(&self) {
        self.switch.connect(self.end, &self.wire, false);
    }
}

impl Drop for Plug {
    fn drop(&mut self) {
        self.cable.switch.remove(self.cable.end, &self.cable.wire);
        // The shutdown ends the thread. An error means that the socket is shut down already.
        _ = self.cable.wire.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // The thread has printed its own panic.
            _ = thread.join();
        }
    }
}

impl Switch {
    /// Forwards the frames from one end until its wire is shut down.
    fn pass_all(&self, from: End, wire: &UnixDatagram) {
        let mut buffer = vec![0; FRAME];
        loop {
            match wire.recv(&mut buffer) {
                Ok(0) => return,
                Ok(length) => self.pass(from, &buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    fn pass(&self, from: End, frame: &[u8]) {
        let to = self.receivers(from, frame);
        for wire in to {
            // The frame is lost if the machine does not read it in time or has ended.
            _ = wire.send(frame);
        }
    }

    /// Receivers of a frame: the machine with its address; all others, if it is a multicast; otherwise the gateway.
    fn receivers(&self, from: End, frame: &[u8]) -> Vec<Arc<UnixDatagram>> {
        let Some(address) = frame.first_chunk::<6>() else { return Vec::new() };
        let for_many = address[0] & 1 == 1;
        let wires = self.wires.read().unwrap_or_else(PoisonError::into_inner);
        if !wires.get(&from).is_some_and(|wire| wire.connected) {
            return Vec::new();
        }
        let one = wires.keys().copied().find(|end| matches!(end, End::Vm(mac) if mac.octets() == *address));
        let one = one.unwrap_or(End::Gateway);
        let takes = |end: End| end != from && (for_many || end == one);
        let takers = wires.iter().filter(|(end, wire)| wire.connected && takes(**end));
        takers.map(|(_, wire)| Arc::clone(&wire.socket)).collect()
    }

    fn put(&self, end: End, wire: Wire) {
        self.wires.write().unwrap_or_else(PoisonError::into_inner).insert(end, wire);
    }

    /// Connects or disconnects a wire, unless another wire has replaced it.
    fn connect(&self, end: End, wire: &Arc<UnixDatagram>, connected: bool) {
        let mut wires = self.wires.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = wires.get_mut(&end).filter(|found| Arc::ptr_eq(&found.socket, wire)) {
            found.connected = connected;
        }
    }

    /// Removes a wire, unless another wire has replaced it.
    fn remove(&self, end: End, wire: &Arc<UnixDatagram>) {
        let mut wires = self.wires.write().unwrap_or_else(PoisonError::into_inner);
        if wires.get(&end).is_some_and(|found| Arc::ptr_eq(&found.socket, wire)) {
            wires.remove(&end);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);
    const GATEWAY: [u8; 6] = [0x52, 0x55, 10, 0, 2, 2];

    /// A machine that a test simulates.
    struct Machine {
        wire: UnixDatagram,
        plug: Plug,
    }

    impl Machine {
        fn new(switch: &Arc<Switch>, end: End) -> Self {
            let (wire, theirs) = UnixDatagram::pair().unwrap();
            wire.set_read_timeout(Some(LONG)).unwrap();
            Self { wire, plug: Plug::new(switch, end, theirs).unwrap() }
        }

        fn send(&self, to: [u8; 6], text: &str) {
            self.wire.send(&[&to, text.as_bytes()].concat()).unwrap();
        }

        fn receive(&self) -> String {
            let mut frame = [0; 100];
            let length = self.wire.recv(&mut frame).unwrap();
            String::from_utf8_lossy(&frame[6..length]).into_owned()
        }
    }

    fn three() -> (Arc<Switch>, [Machine; 3]) {
        let switch = Arc::new(Switch::default());
        let machines = [End::Gateway, End::Vm(Mac::of(0)), End::Vm(Mac::of(1))];
        let machines = machines.map(|end| Machine::new(&switch, end));
        (switch, machines)
    }

    #[test]
    fn a_frame_for_one_machine_reaches_only_that() {
        let (_switch, [gateway, first, second]) = three();
        first.send(Mac::of(1).octets(), "for the second");
        assert_eq!(second.receive(), "for the second");
        first.send(GATEWAY, "out");
        // The gateway did not receive the first frame.
        assert_eq!(gateway.receive(), "out");
        gateway.send(Mac::of(0).octets(), "in");
        assert_eq!(first.receive(), "in");
    }

    #[test]
    fn a_broadcast_reaches_all_others() {
        let (_switch, [gateway, first, second]) = three();
        first.send([0xff; 6], "who is there?");
        assert_eq!((gateway.receive(), second.receive()), ("who is there?".into(), "who is there?".into()));
        second.send(Mac::of(0).octets(), "I am");
        assert_eq!(first.receive(), "I am");
    }

    #[test]
    fn a_restarted_machine_replaces_the_old_one() {
        let (switch, [_gateway, first, second]) = three();
        let again = Machine::new(&switch, End::Vm(Mac::of(1)));
        drop(second);
        first.send(Mac::of(1).octets(), "welcome back");
        assert_eq!(again.receive(), "welcome back");
    }

    #[test]
    fn a_machine_without_its_cable_is_isolated() {
        let (switch, [gateway, first, second]) = three();
        let cable = first.plug.cable();
        cable.pull();
        second.send(Mac::of(0).octets(), "lost");
        second.send(GATEWAY, "not for the first");
        assert_eq!(gateway.receive(), "not for the first");
        assert!(switch.receivers(End::Vm(Mac::of(0)), &GATEWAY).is_empty());
        cable.put_in();
        second.send(Mac::of(0).octets(), "welcome back");
        assert_eq!(first.receive(), "welcome back");
        drop(first);
        cable.put_in();
        second.send([0xff; 6], "who is there?");
        assert_eq!(gateway.receive(), "who is there?");
        assert_eq!(switch.wires.read().unwrap().len(), 2);
    }

    #[test]
    fn a_machine_that_hangs_or_is_gone_does_not_stop_the_others() {
        let (switch, [gateway, _hangs, second]) = three();
        let gone = Machine::new(&switch, End::Vm(Mac::of(2)));
        gone.wire.shutdown(std::net::Shutdown::Both).unwrap();
        // More frames than the queue of a reader has space for: net.unix.max_dgram_qlen, 10 by default.
        for count in 0..12 {
            second.send([0xff; 6], "");
            second.send(GATEWAY, &count.to_string());
            assert_eq!((gateway.receive(), gateway.receive()), (String::new(), count.to_string()));
        }
    }

    proptest! {
        #[test]
        fn no_machine_receives_its_own_frames(frame in prop::collection::vec(any::<u8>(), 0..40)) {
            let (switch, _machines) = three();
            for end in [End::Gateway, End::Vm(Mac::of(0))] {
                let own = Arc::clone(&switch.wires.read().unwrap()[&end].socket);
                prop_assert!(switch.receivers(end, &frame).iter().all(|wire| !Arc::ptr_eq(wire, &own)));
            }
        }
    }
}
