package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
)

// Permit gives the agents the rights that the manifest gives them, and no other. The path is the manifest's.
func Permit(client kubernetes.Interface, manifest string) error {
	file, err := os.Open(manifest)
	if err != nil {
		return err
	}
	defer file.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for docs := yaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		var raw runtime.RawExtension
		if err := docs.Decode(&raw); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := permit(ctx, client, raw.Raw); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("permit the agents: %w", err)
		}
	}
}

// permit creates one object if it is about rights.
func permit(ctx context.Context, client kubernetes.Interface, object []byte) error {
	var kind metav1.TypeMeta
	if err := json.Unmarshal(object, &kind); err != nil {
		return err
	}
	switch kind.Kind {
	case "ClusterRole":
		role := &rbacv1.ClusterRole{}
		if err := json.Unmarshal(object, role); err != nil {
			return err
		}
		_, err := client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
		return err
	case "ClusterRoleBinding":
		binding := &rbacv1.ClusterRoleBinding{}
		if err := json.Unmarshal(object, binding); err != nil {
			return err
		}
		_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
		return err
	}
	return nil
}
