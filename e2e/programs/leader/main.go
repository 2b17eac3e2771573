// Command leader writes the machine's time to a file, a hundred times a second, while it is the leader. It elects the
// leader with client-go, or is told that somebody else does: with --leader-elect=false it writes at once, as the
// programs of Kubernetes with this flag do.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const period = 10 * time.Millisecond

func main() {
	elect := flag.Bool("leader-elect", true, "write only while this program is the leader")
	folder := flag.String("folder", "/data", "the folder of the files to write")
	name := flag.String("lease-name", "leader", "the Lease, in the pod's namespace")
	// The defaults are those of Kubernetes' own components and of controller-runtime.
	lease := flag.Duration("lease-duration", 15*time.Second, "how long others wait for a leader that is silent")
	renew := flag.Duration("renew-deadline", 10*time.Second, "how long the leader tries to renew")
	retry := flag.Duration("retry-period", 2*time.Second, "the time between two attempts")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if !*elect {
		work(ctx, *folder)
		return
	}
	lock, err := lock(*name)
	if err != nil {
		log.Fatal(err)
	}
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   *lease,
		RenewDeadline:   *renew,
		RetryPeriod:     *retry,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { work(ctx, *folder) },
			// The pod starts again, as a candidate.
			OnStoppedLeading: func() { os.Exit(0) },
		},
	})
}

func lock(name string) (resourcelock.Interface, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	namespace, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return nil, err
	}
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Name: name, Namespace: string(namespace)},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: string(uuid.NewUUID())},
	}, nil
}

// work is what only one pod may do. The name of the file has the fencing token, if there is one, and the pod.
func work(ctx context.Context, folder string) {
	token := os.Getenv("LEADERGROUP_TOKEN")
	if token == "" {
		token = "0"
	}
	pod, err := os.Hostname()
	if err != nil {
		log.Fatal(err)
	}
	name := fmt.Sprintf("%s.%s.%s.leader", token, pod, uptime())
	file, err := os.OpenFile(filepath.Join(folder, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		log.Fatal(err)
	}
	for ctx.Err() == nil {
		if _, err := fmt.Fprintf(file, "%s\n", uptime()); err != nil {
			log.Fatal(err)
		}
		time.Sleep(period)
	}
}

// uptime is the time since the machine's start in seconds.
func uptime() []byte {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		log.Fatal(err)
	}
	seconds, _, _ := bytes.Cut(text, []byte(" "))
	return seconds
}
