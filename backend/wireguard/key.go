package wireguard

import (
	"crypto/ecdh"

	"github.com/weft-cni/weft/subnet"
)

// PublicKey is the public half of a private key, by which peers know the node.
func PublicKey(private subnet.Secret) subnet.Key {
	key, err := ecdh.X25519().NewPrivateKey(private[:])
	if err != nil {
		return subnet.Key{} // the impossible: the length is right, and any 32 bytes are a key
	}
	return subnet.Key(key.PublicKey().Bytes())
}
