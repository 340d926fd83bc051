// Package check tests what stands in deploy and in docker-compose.yml: Kubernetes manifests against the types of
// Kubernetes and of the Prometheus operator, the compose file by the library of docker compose.
//
// It is a module of its own, so that walpost depends on nothing of Kubernetes.
package check
