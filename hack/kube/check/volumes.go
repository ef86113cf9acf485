// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

var volumes = []check{
	{name: "emptyDir: shared by containers; in memory with a size", run: emptyDirs},
	{name: "configMap: as files with modes, and as environment", run: configMaps},
	{name: "secret: as files in memory, and as environment", run: secrets},
	{name: "Downward API: as files, and as environment", run: downward},
	{name: "Projected volume: several sources and a token", run: projected},
	{name: "configMap and labels: a change reaches a running container", run: liveUpdate},
}

func (e *env) configMap(ctx context.Context, name string, data map[string]string) error {
	_, err := e.client.CoreV1().ConfigMaps(e.ns).Create(ctx, &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: name}, Data: data}, meta.CreateOptions{})
	return err
}

func (e *env) secret(ctx context.Context, name string, data map[string]string) error {
	_, err := e.client.CoreV1().Secrets(e.ns).Create(ctx, &core.Secret{ObjectMeta: meta.ObjectMeta{Name: name}, StringData: data}, meta.CreateOptions{})
	return err
}

func named(name string) core.LocalObjectReference { return core.LocalObjectReference{Name: name} }

// theConfigMap is the volume of the config map named "config".
func theConfigMap() core.VolumeSource {
	return core.VolumeSource{ConfigMap: &core.ConfigMapVolumeSource{LocalObjectReference: named("config")}}
}

func emptyDirs(ctx context.Context, e *env) error {
	p := shell("shared", `
		until [ -e /data/file ]; do sleep 0.1; done
		cat /data/file
		awk '$2 == "/mem" {print $3, $4}' /proc/self/mounts | grep -o 'tmpfs .*size=8192k' | sed 's/ .*,/ /'`)
	volume(p, emptyDir(), core.VolumeMount{Name: "data", MountPath: "/data"})
	second := container("second", "echo written > /data/new; mv /data/new /data/file")
	second.VolumeMounts = first(p).VolumeMounts
	p.Spec.Containers = append(p.Spec.Containers, second)
	memory := emptyDir()
	memory.EmptyDir.Medium, memory.EmptyDir.SizeLimit = core.StorageMediumMemory, ptr.To(amounts("s", "8Mi")["s"])
	volume(p, memory, core.VolumeMount{Name: "mem", MountPath: "/mem"})
	return e.prints(ctx, p, "written\ntmpfs size=8192k")
}

func configMaps(ctx context.Context, e *env) error {
	if err := e.configMap(ctx, "config", map[string]string{"text": "hello", "script": "#!/bin/sh\necho ran"}); err != nil {
		return err
	}
	p := shell("configured", `
		cat /config/text; echo
		/config/bin/run
		stat -L -c %a /config/bin/run /config/text
		echo $text $one
		touch /config/text 2>&1 | grep -o 'Read-only file system'`)
	source := theConfigMap()
	source.ConfigMap.DefaultMode = ptr.To[int32](0o444)
	source.ConfigMap.Items = []core.KeyToPath{{Key: "text", Path: "text"}, {Key: "script", Path: "bin/run", Mode: ptr.To[int32](0o755)}}
	volume(p, source, core.VolumeMount{MountPath: "/config"})
	first(p).EnvFrom = []core.EnvFromSource{{ConfigMapRef: &core.ConfigMapEnvSource{LocalObjectReference: named("config")}}}
	first(p).Env = []core.EnvVar{{Name: "one", ValueFrom: &core.EnvVarSource{
		ConfigMapKeyRef: &core.ConfigMapKeySelector{LocalObjectReference: named("config"), Key: "text"},
	}}}
	return e.prints(ctx, p, "hello\nran\n755\n444\nhello hello\nRead-only file system")
}

func secrets(ctx context.Context, e *env) error {
	if err := e.secret(ctx, "secret", map[string]string{"password": "hush"}); err != nil {
		return err
	}
	p := shell("secretive", `
		cat /secret/password; echo
		stat -L -c '%a %u' /secret/password
		grep ' /secret ' /proc/self/mounts | cut -d ' ' -f 1
		echo $password`)
	volume(p, core.VolumeSource{Secret: &core.SecretVolumeSource{SecretName: "secret", DefaultMode: ptr.To[int32](0o400)}},
		core.VolumeMount{MountPath: "/secret", ReadOnly: true})
	first(p).Env = []core.EnvVar{{Name: "password", ValueFrom: &core.EnvVarSource{
		SecretKeyRef: &core.SecretKeySelector{LocalObjectReference: named("secret"), Key: "password"},
	}}}
	return e.prints(ctx, p, "hush\n400 0\ntmpfs\nhush")
}

// field is an environment variable with a field of the pod.
func field(name, path string) core.EnvVar {
	return core.EnvVar{Name: name, ValueFrom: &core.EnvVarSource{FieldRef: &core.ObjectFieldSelector{FieldPath: path}}}
}

// labelsFile is a file with the pod's labels.
func labelsFile() core.DownwardAPIVolumeFile {
	return core.DownwardAPIVolumeFile{Path: "labels", FieldRef: &core.ObjectFieldSelector{FieldPath: "metadata.labels"}}
}

func downward(ctx context.Context, e *env) error {
	p := shell("aware", `
		cat /info/labels; echo
		cat /info/memory; echo
		echo $name $namespace $cpu
		[ "$ip" = "$(hostname -i)" ] && echo ip
		[ -n "$node" ] && echo node`)
	demand(first(p), amounts("cpu", "100m"), amounts("cpu", "500m", "memory", "64Mi"))
	info := &core.DownwardAPIVolumeSource{Items: []core.DownwardAPIVolumeFile{
		labelsFile(),
		{Path: "memory", ResourceFieldRef: &core.ResourceFieldSelector{ContainerName: mainName, Resource: "limits.memory"}},
	}}
	volume(p, core.VolumeSource{DownwardAPI: info}, core.VolumeMount{MountPath: "/info"})
	first(p).Env = []core.EnvVar{
		field("name", "metadata.name"), field("namespace", "metadata.namespace"), field("ip", "status.podIP"), field("node", "spec.nodeName"),
		{Name: "cpu", ValueFrom: &core.EnvVarSource{ResourceFieldRef: &core.ResourceFieldSelector{Resource: "requests.cpu", Divisor: amounts("d", "1m")["d"]}}},
	}
	return e.prints(ctx, p, fmt.Sprintf("app=%q\n67108864\naware %s 100\nip\nnode", "aware", e.ns))
}

func projected(ctx context.Context, e *env) error {
	if err := errors.Join(
		e.configMap(ctx, "config", map[string]string{"text": "from the map"}),
		e.secret(ctx, "secret", map[string]string{"password": "hush"}),
	); err != nil {
		return err
	}
	p := shell("projected", `
		cat /all/text; echo
		cat /all/hidden/password; echo
		cat /all/labels; echo
		cut -d . -f 2 < /all/token | tr _- /+ | base64 -d 2> /dev/null | grep -o '"aud":\["checkers"\]'`)
	volume(p, core.VolumeSource{Projected: &core.ProjectedVolumeSource{Sources: []core.VolumeProjection{
		{ConfigMap: &core.ConfigMapProjection{LocalObjectReference: named("config")}},
		{Secret: &core.SecretProjection{LocalObjectReference: named("secret"), Items: []core.KeyToPath{{Key: "password", Path: "hidden/password"}}}},
		{DownwardAPI: &core.DownwardAPIProjection{Items: []core.DownwardAPIVolumeFile{labelsFile()}}},
		{ServiceAccountToken: &core.ServiceAccountTokenProjection{Audience: "checkers", Path: "token", ExpirationSeconds: ptr.To[int64](3600)}},
	}}}, core.VolumeMount{MountPath: "/all"})
	return e.prints(ctx, p, "from the map\nhush\napp=\"projected\"\n\"aud\":[\"checkers\"]")
}

func liveUpdate(ctx context.Context, e *env) error {
	if err := e.configMap(ctx, "config", map[string]string{"text": "before"}); err != nil {
		return err
	}
	p := shell("watching", forever)
	volume(p, theConfigMap(), core.VolumeMount{MountPath: "/config"})
	volume(p, core.VolumeSource{DownwardAPI: &core.DownwardAPIVolumeSource{Items: []core.DownwardAPIVolumeFile{labelsFile()}}},
		core.VolumeMount{MountPath: "/info"})
	if _, err := e.start(ctx, p); err != nil {
		return err
	}
	const look = "cat /config/text; echo; grep color /info/labels || true"
	out, err := e.exec(ctx, p.Name, look)
	if err := errors.Join(err, equal("before", strings.TrimSpace(out), "before")); err != nil {
		return err
	}
	if _, err := e.client.CoreV1().ConfigMaps(e.ns).Patch(ctx, "config", types.MergePatchType, []byte(`{"data": {"text": "after"}}`), meta.PatchOptions{}); err != nil {
		return err
	}
	// A changed pod is looked at at once, others at the kubelet's next round.
	if _, err := e.client.CoreV1().Pods(e.ns).Patch(ctx, p.Name, types.MergePatchType, []byte(`{"metadata": {"labels": {"color": "red"}}}`), meta.PatchOptions{}); err != nil {
		return err
	}
	return eventually(ctx, 300*time.Millisecond, func(ctx context.Context) error {
		out, err := e.exec(ctx, p.Name, look)
		return errors.Join(err, equal("after", strings.TrimSpace(out), "after\ncolor=\"red\""))
	})
}
