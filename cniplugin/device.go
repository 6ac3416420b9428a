package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// device is an interface as ioctls show it (netdevice(7)): unlike netlink these do not wait for whoever changes links, and a
// hundred pods that are added at once change many.
type device struct {
	fd    int
	name  string
	index int
	up    bool
}

func openDevice(name string) (device, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return device{}, fmt.Errorf("look at %s: %w", name, err)
	}
	d := device{fd: fd, name: name}
	req, err := d.ask(unix.SIOCGIFINDEX)
	if err == nil {
		d.index = int(req.Uint32())
		req, err = d.ask(unix.SIOCGIFFLAGS)
	}
	if err != nil {
		d.close()
		return device{}, err
	}
	d.up = req.Uint16()&unix.IFF_UP != 0
	return d, nil
}

func (d device) close() { _ = unix.Close(d.fd) } // nothing was written

func (d device) ask(what uint) (*unix.Ifreq, error) {
	req, err := unix.NewIfreq(d.name)
	if err == nil {
		err = unix.IoctlIfreq(d.fd, what, req)
	}
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", d.name, err)
	}
	return req, nil
}

// pinned tells that the MAC was chosen (NET_ADDR_SET), so that ports do not change it. Where sysfs shows another namespace
// nothing can be seen; then it was, by whoever gave the bridge its address, as all do.
func (d device) pinned() bool {
	const set = "3"
	dir := "/sys/class/net/" + d.name
	index, err := os.ReadFile(dir + "/ifindex")
	if err != nil || strings.TrimSpace(string(index)) != strconv.Itoa(d.index) {
		return true
	}
	how, err := os.ReadFile(dir + "/addr_assign_type")
	return err != nil || strings.TrimSpace(string(how)) == set
}
