// Takes the place of client-go's file of the same name, by `go build -overlay`.
//
// At each start kube-apiserver creates a certificate for its requests to itself. Upstream's function creates two RSA
// keys of 2,048 bits for it: 14 % of the CPU time of a start. This one creates an ECDSA key
// (docs/adr/0003-kubernetes-from-go-modules.md).

package cert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	"k8s.io/client-go/util/keyutil"
	netutils "k8s.io/utils/net"
)

// SelfSignedCertKeyOptions are the fields of a certificate. Its callers set them.
type SelfSignedCertKeyOptions struct {
	Host         string
	AlternateIPs []net.IP
	AlternateDNS []string
	// A year if it is zero.
	MaxAge time.Duration
	// A directory of certificates for upstream's tests, which must be empty here.
	FixtureDirectory string
}

// GenerateSelfSignedCertKey returns a certificate and its key, both PEM, for a host and other names.
func GenerateSelfSignedCertKey(host string, ips []net.IP, names []string) ([]byte, []byte, error) {
	return GenerateSelfSignedCertKeyWithOptions(SelfSignedCertKeyOptions{Host: host, AlternateIPs: ips, AlternateDNS: names})
}

// GenerateSelfSignedCertKeyWithFixtures is GenerateSelfSignedCertKey, and fails if directory is not empty.
func GenerateSelfSignedCertKeyWithFixtures(host string, ips []net.IP, names []string, directory string) ([]byte, []byte, error) {
	return GenerateSelfSignedCertKeyWithOptions(SelfSignedCertKeyOptions{
		Host: host, AlternateIPs: ips, AlternateDNS: names, FixtureDirectory: directory,
	})
}

// GenerateSelfSignedCertKeyWithOptions returns a certificate and its key, both PEM. The certificate is its own CA, and is
// valid from an hour ago, because clocks differ.
func GenerateSelfSignedCertKeyWithOptions(options SelfSignedCertKeyOptions) ([]byte, []byte, error) {
	if options.FixtureDirectory != "" {
		return nil, nil, errors.New("certificates of a fixture directory are not supported")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot create a key for %s: %w", options.Host, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 63))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot create a serial number for %s: %w", options.Host, err)
	}
	age := options.MaxAge
	if age == 0 {
		age = 365 * 24 * time.Hour
	}
	from := time.Now().Add(-time.Hour)
	template := x509.Certificate{
		SerialNumber:          serial.Add(serial, big.NewInt(1)),
		Subject:               pkix.Name{CommonName: fmt.Sprintf("%s@%d", options.Host, time.Now().Unix())},
		NotBefore:             from,
		NotAfter:              from.Add(age),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		IPAddresses:           options.AlternateIPs,
		DNSNames:              options.AlternateDNS,
	}
	if ip := netutils.ParseIPSloppy(options.Host); ip != nil {
		template.IPAddresses = append([]net.IP{ip}, template.IPAddresses...)
	} else {
		template.DNSNames = append([]string{options.Host}, template.DNSNames...)
	}
	certificate, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot sign the certificate of %s: %w", options.Host, err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot encode the key of %s: %w", options.Host, err)
	}
	block := func(kind string, bytes []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes})
	}
	return block(CertificateBlockType, certificate), block(keyutil.ECPrivateKeyBlockType, private), nil
}
