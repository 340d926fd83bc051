package check

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write deploy/kubernetes/monitoring/rules.yaml again, from deploy/prometheus/walpost.rules.yml")

// cluster is everything that kubectl apply -k deploy/kubernetes would send, by name.
type cluster struct {
	deployments map[string]*appsv1.Deployment
	jobs        map[string]*batchv1.Job
	services    map[string]*corev1.Service
	budgets     map[string]*policyv1.PodDisruptionBudget
	accounts    map[string]*corev1.ServiceAccount
	configs     map[string]*corev1.ConfigMap
	namespaces  map[string]*corev1.Namespace
	monitors    map[string]*monitoringv1.ServiceMonitor
	rules       map[string]*monitoringv1.PrometheusRule
}

// render has kustomize render the folder, and decodes what comes out: a field that its type does not have is an error.
func render(t *testing.T) cluster {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	c := cluster{
		map[string]*appsv1.Deployment{}, map[string]*batchv1.Job{}, map[string]*corev1.Service{}, map[string]*policyv1.PodDisruptionBudget{},
		map[string]*corev1.ServiceAccount{}, map[string]*corev1.ConfigMap{}, map[string]*corev1.Namespace{},
		map[string]*monitoringv1.ServiceMonitor{}, map[string]*monitoringv1.PrometheusRule{},
	}
	for _, r := range resources.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		name := r.GetName()
		switch kind := r.GetApiVersion() + " " + r.GetKind(); kind {
		case "apps/v1 Deployment":
			c.deployments[name] = decode[appsv1.Deployment](t, text)
		case "batch/v1 Job":
			c.jobs[name] = decode[batchv1.Job](t, text)
		case "v1 Service":
			c.services[name] = decode[corev1.Service](t, text)
		case "policy/v1 PodDisruptionBudget":
			c.budgets[name] = decode[policyv1.PodDisruptionBudget](t, text)
		case "v1 ServiceAccount":
			c.accounts[name] = decode[corev1.ServiceAccount](t, text)
		case "v1 ConfigMap":
			c.configs[name] = decode[corev1.ConfigMap](t, text)
		case "v1 Namespace":
			c.namespaces[name] = decode[corev1.Namespace](t, text)
		case "monitoring.coreos.com/v1 ServiceMonitor":
			c.monitors[name] = decode[monitoringv1.ServiceMonitor](t, text)
		case "monitoring.coreos.com/v1 PrometheusRule":
			c.rules[name] = decode[monitoringv1.PrometheusRule](t, text)
		default:
			t.Errorf("no test knows %s %s", kind, name) // a Role or a Secret would be one
		}
		if r.GetKind() != "Namespace" && r.GetNamespace() != "walpost" {
			t.Errorf("%s %s is in namespace %q", r.GetKind(), name, r.GetNamespace())
		}
	}
	return c
}

func decode[T any](t *testing.T, text []byte) *T {
	t.Helper()
	var value T
	if err := yaml.UnmarshalStrict(text, &value); err != nil {
		t.Errorf("%v in\n%s", err, text)
	}
	return &value
}

// The test of the test: a misspelt field is found.
func TestDecode_refusesAFieldThatTheTypeDoesNotHave(t *testing.T) {
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict([]byte("spec: {replica: 2}"), &d); err == nil {
		t.Error("replica passes for replicas")
	}
}

// pods are the pod templates of everything that runs, by the name of what runs them.
func (c cluster) pods() map[string]corev1.PodTemplateSpec {
	pods := map[string]corev1.PodTemplateSpec{}
	for name, d := range c.deployments {
		pods[name] = d.Spec.Template
	}
	for name, j := range c.jobs {
		pods[name] = j.Spec.Template
	}
	return pods
}

func TestKubernetes_runsTwoRelaysOneAfterTheOtherInADeployment(t *testing.T) {
	c := render(t)
	relay := c.deployments["walpost-relay"]
	if relay == nil || c.deployments["walpost-api"] == nil || c.jobs["walpost-migrate"] == nil {
		t.Fatalf("deployments %v, jobs %v", c.deployments, c.jobs)
	}
	if got := *relay.Spec.Replicas; got != 2 {
		t.Errorf("%d relays, want 2", got)
	}
	if rolling := relay.Spec.Strategy.RollingUpdate; rolling.MaxSurge.IntValue() != 0 || rolling.MaxUnavailable.IntValue() != 1 {
		t.Errorf("a rolling update replaces %v relays and adds %v", rolling.MaxUnavailable, rolling.MaxSurge)
	}
	// docs/ARCHITECTURE.md, "How it stops": drain and five seconds.
	if grace := *relay.Spec.Template.Spec.TerminationGracePeriodSeconds; grace <= 25 {
		t.Errorf("Kubernetes kills a relay that stops after %d s; it needs more than 25", grace)
	}
}

// What runs needs no right on its machine, and its root cannot be written.
func TestKubernetes_givesNoPodMoreThanItNeeds(t *testing.T) {
	c := render(t)
	if got := c.namespaces["walpost"].Labels["pod-security.kubernetes.io/enforce"]; got != "restricted" {
		t.Errorf("the namespace enforces %q", got)
	}
	for name, account := range c.accounts {
		if account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken {
			t.Errorf("pods of the account %s get a token", name)
		}
	}
	pods := c.pods()
	if len(pods) != 3 {
		t.Errorf("%d kinds of pods, want 3", len(pods))
	}
	for name, pod := range pods {
		spec := pod.Spec
		if c.accounts[spec.ServiceAccountName] == nil {
			t.Errorf("%s: there is no account %q", name, spec.ServiceAccountName)
		}
		if on := spec.AutomountServiceAccountToken; on == nil || *on {
			t.Errorf("%s gets a token for Kubernetes", name)
		}
		if spec.HostNetwork || spec.HostPID || spec.HostIPC {
			t.Errorf("%s is in a namespace of its host", name)
		}
		security := spec.SecurityContext
		if security == nil || security.RunAsNonRoot == nil || !*security.RunAsNonRoot || security.RunAsUser == nil || *security.RunAsUser != 65532 ||
			security.SeccompProfile == nil || security.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s runs with %+v", name, security)
		}
		for _, container := range spec.Containers {
			s := container.SecurityContext
			if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation ||
				s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) != 0 {
				t.Errorf("%s runs with %+v", name, s)
			}
			if container.Resources.Limits.Memory().IsZero() || container.Resources.Requests.Cpu().IsZero() {
				t.Errorf("%s has the resources %+v", name, container.Resources)
			}
			if !strings.HasPrefix(container.Image, "registry.example/walpost:") {
				t.Errorf("%s runs %s, which kustomization.yaml does not set", name, container.Image)
			}
		}
		for _, volume := range spec.Volumes {
			if volume.ConfigMap == nil || c.configs[volume.ConfigMap.Name] == nil {
				t.Errorf("%s mounts %s, which is no ConfigMap of ours", name, volume.Name)
			}
		}
	}
}

// Each part has a Secret of its own, and with it a role of its own of deploy/sql/roles.sql.
func TestKubernetes_givesEachPartItsRole(t *testing.T) {
	options := optionsOf(t)
	for name, pod := range render(t).pods() {
		found := false
		for _, variable := range pod.Spec.Containers[0].Env {
			if strings.HasPrefix(variable.Name, "WALPOST_") && !options[variable.Name] {
				t.Errorf("%s sets %s, which is no option", name, variable.Name)
			}
			if variable.ValueFrom == nil || variable.ValueFrom.FieldRef != nil {
				continue
			}
			if secret := variable.ValueFrom.SecretKeyRef; secret == nil || secret.Name != name {
				t.Errorf("%s reads %s from %+v, want its own Secret", name, variable.Name, variable.ValueFrom)
			}
			found = found || variable.Name == "WALPOST_DATABASE_URL"
		}
		if !found {
			t.Errorf("%s has no WALPOST_DATABASE_URL", name)
		}
		if role := strings.ReplaceAll(name, "-", "_"); !strings.Contains(read(t, "../sql/roles.sql"), "'"+role+"'") {
			t.Errorf("deploy/sql/roles.sql makes no role %s", role)
		}
	}
}

func optionsOf(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	files, err := os.ReadDir("../../internal/config")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		for _, match := range regexp.MustCompile(`env:"(WALPOST_[A-Z_]+)"`).FindAllStringSubmatch(read(t, "../../internal/config/"+f.Name()), -1) {
			known[match[1]] = true
		}
	}
	if len(known) < 10 {
		t.Fatalf("found the options %v", known)
	}
	return known
}

func TestKubernetes_probesAndFindsItsPods(t *testing.T) {
	c := render(t)
	for name, d := range c.deployments {
		container := d.Spec.Template.Spec.Containers[0]
		for path, probe := range map[string]*corev1.Probe{"/live": container.LivenessProbe, "/ready": container.ReadinessProbe} {
			if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Port.String() != container.Ports[0].Name {
				t.Errorf("%s has the probe %+v, want one of %s at its port", name, probe, path)
			}
		}
		pods := labels.Set(d.Spec.Template.Labels)
		if !selects(t, d.Spec.Selector, pods) {
			t.Errorf("%s does not select its pods", name)
		}
		if budget := c.budgets[name]; budget == nil || !selects(t, budget.Spec.Selector, pods) || budget.Spec.MinAvailable.IntValue() != 1 {
			t.Errorf("the PodDisruptionBudget of %s is %+v", name, budget)
		}
		service := c.services[name]
		if service == nil || !labels.SelectorFromSet(service.Spec.Selector).Matches(pods) || service.Spec.Ports[0].TargetPort.String() != container.Ports[0].Name {
			t.Errorf("the Service of %s is %+v", name, service)
		}
		for other, d := range c.deployments {
			if other != name && labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(d.Spec.Template.Labels)) {
				t.Errorf("the Service of %s leads to %s too", name, other)
			}
		}
		address := regexp.MustCompile(`^0\.0\.0\.0:(\d+)$`)
		if !slices.ContainsFunc(container.Env, func(v corev1.EnvVar) bool {
			m := address.FindStringSubmatch(v.Value)
			return m != nil && m[1] == fmt.Sprint(container.Ports[0].ContainerPort)
		}) {
			t.Errorf("%s does not listen on the port that it shows", name)
		}
	}
}

func selects(t *testing.T, selector *metav1.LabelSelector, pods labels.Set) bool {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return !s.Empty() && s.Matches(pods)
}

func TestKubernetes_hasPrometheusScrapeEachRelayAsOneJob(t *testing.T) {
	c := render(t)
	monitor := c.monitors["walpost-relay"]
	if monitor == nil {
		t.Fatalf("monitors: %v", c.monitors)
	}
	for name, service := range c.services {
		if got, want := selects(t, &monitor.Spec.Selector, service.Labels), name == "walpost-relay"; got != want {
			t.Errorf("the Service %s is scraped: %v, want %v", name, got, want)
		}
	}
	service := c.services["walpost-relay"]
	// The rule of an absent relay names the job.
	if got, want := service.Labels[monitor.Spec.JobLabel], "walpost"; got != want {
		t.Errorf("the job is called %q, want %q", got, want)
	}
	if got, want := monitor.Spec.Endpoints[0].Port, service.Spec.Ports[0].Name; got != want {
		t.Errorf("port %q is scraped, the Service has %q", got, want)
	}
	if !service.Spec.PublishNotReadyAddresses {
		t.Error("a relay that is not ready is not scraped")
	}
	if interval, err := time.ParseDuration(string(monitor.Spec.Endpoints[0].Interval)); err != nil || interval > 30*time.Second {
		t.Errorf("scraped every %q: %v", monitor.Spec.Endpoints[0].Interval, err)
	}
}

const (
	rulesFile = "../prometheus/walpost.rules.yml"
	ruleHead  = "# Made from deploy/prometheus/walpost.rules.yml: go -C deploy/check test -run PrometheusRule -update\n" +
		"apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: walpost\nspec:\n"
)

// The rules are written once, for Prometheus; the Prometheus operator wants them in a resource.
func TestPrometheusRule_hasTheRulesOfPrometheus(t *testing.T) {
	const file = "../kubernetes/monitoring/rules.yaml"
	var want bytes.Buffer
	want.WriteString(ruleHead)
	for line := range strings.Lines(read(t, rulesFile)) {
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		want.WriteString("  " + line)
	}
	if *update {
		if err := os.WriteFile(file, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, file) != want.String() {
		t.Errorf("%s differs from %s: go -C deploy/check test -run PrometheusRule -update", file, rulesFile)
	}
	rule := render(t).rules["walpost"]
	if rule == nil || len(rule.Spec.Groups) == 0 {
		t.Fatalf("the rule is %+v", rule)
	}
	for _, group := range rule.Spec.Groups {
		for _, r := range group.Rules {
			if r.Expr.String() == "" || r.Alert == "" && r.Record == "" {
				t.Errorf("group %s has the rule %+v", group.Name, r)
			}
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
